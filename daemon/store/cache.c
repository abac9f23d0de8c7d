#include "daemon/store/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	NAME_BYTES = 4096, /* of an object with a longer name nothing is cached */
	DIR_BYTES = sizeof("ab/0123456789abcdef0123456789abcdef"),
	PATH_BYTES = DIR_BYTES + sizeof("/4294967295.piece"),
	CHUNK = 256 << 10,
	TOUCH_S = 60,	      /* the time at which a piece was read is not written more often */
	RETRY_MS = 60 * 1000, /* after a fault of the disk */
};

/* The end of a piece's file, after its bytes. */
struct seal {
	uint64_t sum;	 /* XXH64 of the bytes; the seed is the piece's number */
	uint64_t daemon; /* the last one that compared them */
};

/* A piece that a scan found. */
struct old {
	int64_t read_ns;
	char path[PATH_BYTES];
};

struct store_cache {
	int dir; /* locked */
	uint64_t daemon;
	const struct store_options *options;
	pthread_t scanner;
	_Atomic bool closing;

	pthread_mutex_t turn; /* to add and remove pieces */
	struct old *old; /* all pieces when they were last scanned, read least recently first */
	size_t olds, next_old, room;

	pthread_mutex_t lock; /* never held while the disk works */
	/* As store_cache_status() says it, but for the times. `dir` and size_bytes never change. */
	struct store_cache_status status;
	int64_t failing_until_ms, failed_ms;
	int64_t damage_due_ms; /* until then no damaged piece is logged */
};

/* @counter: of the status. */
static void count(struct store_cache *cache, uint64_t *counter, int64_t by)
{
	pthread_mutex_lock(&cache->lock);
	*counter += (uint64_t)by;
	pthread_mutex_unlock(&cache->lock);
}

/* ---- the directory ---- */

static bool refuse_errno(struct fault *fault, const char *path, const char *what)
{
	int error = errno;

	return fault_errno(fault, error, "cache.dir", "%s: %s: %s", path, what, strerror(error));
}

static bool judge(int dir, const char *path, uint64_t size, struct fault *fault)
{
	char name[24];
	struct stat st;
	int fd;

	if (fstat(dir, &st) != 0)
		return refuse_errno(fault, path, "cannot be examined");
	if (st.st_uid != geteuid())
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: belongs to user %u, and the daemon runs as user %u; run `chown`, or "
			"name another directory",
			path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: other users may write to it (mode %03o); run `chmod 700`", path,
			(unsigned)st.st_mode & 0777);
	if (size < (uint64_t)CACHE_LEAST_PIECES * CACHE_BLOCK)
		return fault_set(fault, FAULT_ARGUMENT, "cache.size",
			"%" PRIu64 " bytes are fewer than %d pieces", size, CACHE_LEAST_PIECES);
	/* Its disk must answer, too: a thread that it does not answer would hold up an execve(). */
	snprintf(name, sizeof(name), "try.%d", (int)getpid());
	fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return refuse_errno(fault, path, "cannot be written to");
	close(fd);
	unlinkat(dir, name, 0);
	return true;
}

/* Creates the directory and judges it. Returns its descriptor, or -1 and @fault. */
static int open_directory(const char *path, uint64_t size, struct fault *fault)
{
	int dir = -1;

	if (mkdir(path, 0700) != 0 && errno != EEXIST)
		refuse_errno(fault, path, "cannot be created");
	else if ((dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		refuse_errno(fault, path, "cannot be opened");
	else if (judge(dir, path, size, fault))
		return dir;
	if (dir >= 0)
		close(dir);
	return -1;
}

/* The directory is locked, not the file with the owner's pid, which somebody may remove with the
 * rest: two daemons would each fill the cache. */
static bool lock(int dir, const char *path, struct fault *fault)
{
	int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	char pid[24] = "";
	bool locked = false;

	if (fd < 0)
		return refuse_errno(fault, path, "cannot create its lock");
	if (flock(dir, LOCK_EX | LOCK_NB) == 0) {
		snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
		locked = ftruncate(fd, 0) == 0 && pwrite(fd, pid, strlen(pid), 0) > 0;
		if (!locked)
			refuse_errno(fault, path, "cannot write its lock");
	} else if (errno != EWOULDBLOCK) {
		refuse_errno(fault, path, "cannot be locked");
	} else if (pread(fd, pid, sizeof(pid) - 1, 0) > 0 && atoi(pid) > 0) {
		fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: the daemon with pid %d uses it; each daemon needs its own", path,
			atoi(pid));
	} else {
		fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: another daemon uses it; each daemon needs its own", path);
	}
	close(fd);
	return locked;
}

bool store_cache_suits(const char *dir, uint64_t size, struct fault *fault)
{
	int fd = open_directory(dir, size, fault);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* ---- names and sizes ---- */

/* What the file `name` of an object contains. */
struct name {
	char text[NAME_BYTES]; /* URL, ETag, server, size, size of a piece, each with a zero */
	size_t n;
	char dir[DIR_BYTES]; /* "ab/HASH" */
};

/* False: it does not fit. */
static bool name_of(const struct object *object, struct name *name)
{
	const struct url_place *place = &object->bucket->place;
	int n = snprintf(name->text, NAME_BYTES, "%s/%s%c%s%c%s%s%c%" PRIu64 "%c%" PRIu32 "%c",
		place->name, object->key, 0, object->etag ? object->etag : "", 0, place->host,
		place->base, 0, object->size, 0, object->piece, 0);
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;
	char *end = name->dir + 3;

	if (n < 0 || n >= NAME_BYTES)
		return false;
	name->n = (size_t)n;
	sha256_init(&sha);
	sha256_update(&sha, name->n, (const uint8_t *)name->text);
	sha256_digest(&sha, sizeof(digest), digest);
	for (int i = 0; i < 16; i++)
		end += snprintf(end, 3, "%02x", digest[i]);
	memcpy(name->dir, name->dir + 3, 2);
	name->dir[2] = '/';
	return true;
}

static void piece_path(const char *dir, uint32_t number, char path[PATH_BYTES])
{
	snprintf(path, PATH_BYTES, "%s/%" PRIu32 ".piece", dir, number);
}

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK;
}

/* Of the file of a piece of @bytes. */
static uint64_t file_bytes(uint64_t bytes)
{
	return bytes + sizeof(struct seal);
}

static int64_t ns(const struct timespec *time)
{
	return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

/* When a file was read, or otherwise written. */
static int64_t read_ns(const struct stat *st)
{
	int64_t read = ns(&st->st_atim), written = ns(&st->st_mtim);

	return read > written ? read : written;
}

/* ---- faults of the disk ---- */

bool store_cache_takes(struct store_cache *cache)
{
	pthread_mutex_lock(&cache->lock);
	bool takes = stores_now_ms() >= cache->failing_until_ms;

	pthread_mutex_unlock(&cache->lock);
	return takes;
}

/* Whether a line may be logged: one of its kind a minute. */
static bool is_due(struct store_cache *cache, int64_t *due_ms)
{
	int64_t now = stores_now_ms();

	pthread_mutex_lock(&cache->lock);
	bool due = now >= *due_ms;

	if (due)
		*due_ms = now + RETRY_MS;
	pthread_mutex_unlock(&cache->lock);
	return due;
}

static void failed(struct store_cache *cache, int error, const char *what)
{
	struct stat st;

	/* Somebody may have removed a part of the cache. Only the cache itself is made again by no
	 * later piece. */
	if (error == ENOENT && fstat(cache->dir, &st) == 0 && st.st_nlink > 0)
		return;
	pthread_mutex_lock(&cache->lock);
	cache->failed_ms = stores_now_ms();
	snprintf(cache->status.last, sizeof(cache->status.last), "%s: %s", what, strerror(error));
	pthread_mutex_unlock(&cache->lock);
	if (is_due(cache, &cache->failing_until_ms))
		stores_log(cache->options, "cache %s: %s: %s; windows are fetched singly%s",
			cache->status.dir, what, strerror(error),
			error == ENOENT ? " until the daemon is started again"
					: ", and it is tried again every minute");
}

/* ---- reading ---- */

/* 0 or an errno; EBADMSG: the file is shorter. */
static int read_at(int fd, uint64_t at, void *to, size_t n)
{
	ssize_t got = pread(fd, to, n, (off_t)at);

	return got == (ssize_t)n ? 0 : got < 0 ? errno : EBADMSG;
}

/* 0 or an errno. */
static int sum_of(int fd, uint64_t bytes, uint32_t number, uint64_t *sum)
{
	XXH64_state_t state;
	char *chunk = malloc(CHUNK);
	int error = chunk ? 0 : ENOMEM;

	XXH64_reset(&state, number);
	for (uint64_t at = 0; at < bytes && !error; at += CHUNK) {
		size_t n = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;

		error = read_at(fd, at, chunk, n);
		if (!error)
			XXH64_update(&state, chunk, n);
	}
	free(chunk);
	*sum = XXH64_digest(&state);
	return error;
}

/* Compares a piece with its sum, unless this daemon has done that. 0 or an errno; EBADMSG: it
 * differs. */
static int compare(const struct store_cache *cache, int fd, uint64_t bytes, uint32_t number)
{
	struct seal seal;
	uint64_t sum;
	int error = read_at(fd, bytes, &seal, sizeof(seal));

	if (error || seal.daemon == cache->daemon)
		return error;
	error = sum_of(fd, bytes, number, &sum);
	if (error || sum != seal.sum)
		return error ? error : EBADMSG;
	seal.daemon = cache->daemon;
	ssize_t put = pwrite(fd, &seal, sizeof(seal), (off_t)bytes);

	(void)put; /* otherwise it is compared again */
	return 0;
}

/* Notes that a piece is read: not every file system is mounted so that it does this. */
static void touch(int fd, const struct stat *st)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};

	if (ns(&st->st_atim) <= ns(&st->st_mtim) || st->st_atim.tv_sec + TOUCH_S < time(NULL))
		futimens(fd, times);
}

/* Reads from the file of a piece of @bytes. 0 or an errno; EBADMSG: it is damaged. */
static int read_file(const struct store_cache *cache, int fd, uint64_t bytes, uint32_t number,
	uint64_t at, void *to, size_t n)
{
	struct stat st;
	int error;

	if (fstat(fd, &st) != 0)
		return errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != file_bytes(bytes))
		return EBADMSG;
	error = compare(cache, fd, bytes, number);
	if (!error)
		error = read_at(fd, at, to, n);
	if (!error)
		touch(fd, &st);
	return error;
}

bool store_cache_read(
	struct store_cache *cache, const struct object *object, uint64_t at, void *to, size_t n)
{
	uint32_t number = (uint32_t)(at / object->piece);
	uint64_t bytes = cache_piece_bytes(object->size, object->piece, number);
	char path[PATH_BYTES];
	struct name name;
	struct stat st;

	assert(n > 0 && at % object->piece + n <= bytes);
	if (!name_of(object, &name))
		return false;
	piece_path(name.dir, number, path);
	int fd = openat(cache->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), error = 0;

	if (fd < 0)
		error = errno;
	else
		error = read_file(cache, fd, bytes, number, at % object->piece, to, n);
	if (!error)
		count(cache, &cache->status.hits, 1);
	if (error == EBADMSG) {
		count(cache, &cache->status.mismatches, 1);
		if (is_due(cache, &cache->damage_due_ms))
			stores_log(cache->options,
				"cache %s: piece %" PRIu32
				" of %s differs from its sum; it is fetched again. If that happens "
				"again, look for errors of the disk",
				cache->status.dir, number, object->key);
	} else if (error && error != ENOENT) {
		failed(cache, error, "cannot read a piece");
	}
	/* Another thread may have removed it, and fetched it again. */
	if (fd >= 0 && error && fstat(fd, &st) == 0 && st.st_nlink > 0 &&
		unlinkat(cache->dir, path, 0) == 0)
		count(cache, &cache->status.used_bytes, -(int64_t)blocks((uint64_t)st.st_size));
	if (fd >= 0)
		close(fd);
	return !error;
}

/* ---- all pieces ---- */

/* Adds a piece to those that may be removed. */
static void note_piece(struct store_cache *cache, const char *path, const struct stat *st)
{
	if (cache->olds == cache->room) {
		size_t room = 2 * cache->room + 1024;
		struct old *more = reallocarray(cache->old, room, sizeof(*more));

		if (!more)
			return; /* it stays until the next scan */
		cache->old = more;
		cache->room = room;
	}
	struct old *old = &cache->old[cache->olds++];

	old->read_ns = read_ns(st);
	snprintf(old->path, PATH_BYTES, "%s", path);
}

/* Whether a directory is the cache's: "ab" or "ab/HASH". Somebody may have others next to it. */
static bool is_own(const FTSENT *f)
{
	size_t n = strlen(f->fts_name);

	return n == (f->fts_level == 1 ? 2 : 32) && strspn(f->fts_name, "0123456789abcdef") == n;
}

static bool is_piece(const FTSENT *f)
{
	size_t digits = strspn(f->fts_name, "0123456789");

	return digits > 0 && f->fts_info == FTS_F && strcmp(f->fts_name + digits, ".piece") == 0;
}

static int by_read(const void *a, const void *b)
{
	int64_t x = ((const struct old *)a)->read_ns, y = ((const struct old *)b)->read_ns;

	return (x > y) - (x < y);
}

/* Finds all pieces, and removes all other files from the directories of objects: dir/ab/HASH/FILE
 * have the levels 1 to 3. In the turn. */
static void scan(struct store_cache *cache)
{
	char root[32], name[PATH_BYTES], *const roots[] = {root, NULL};
	size_t cut = (size_t)snprintf(root, sizeof(root), "/proc/self/fd/%d/", cache->dir);
	FTS *files = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	uint64_t used = 0, objects = 0, bytes = 0; /* bytes: of the object */
	bool named = false;			   /* the object has a name, for tokctl */
	struct stat st;
	FTSENT *f;

	cache->olds = cache->next_old = 0;
	while (files && (f = fts_read(files)) && !cache->closing) {
		const char *path = f->fts_path + cut;

		if (f->fts_level > 0 && f->fts_info == FTS_D && !is_own(f)) {
			fts_set(files, f, FTS_SKIP);
		} else if (f->fts_level == 2 && f->fts_info == FTS_D) {
			snprintf(name, sizeof(name), "%s/name", path);
			named = fstatat(cache->dir, name, &st, 0) == 0 && st.st_size > 0;
			bytes = 0;
		} else if (f->fts_level == 3 && named && is_piece(f)) {
			bytes += blocks((uint64_t)f->fts_statp->st_size);
			note_piece(cache, path, f->fts_statp);
		} else if (f->fts_level == 3 && strcmp(f->fts_name, "name") != 0) {
			unlinkat(cache->dir, path, 0);
		} else if (f->fts_level == 2 && f->fts_info == FTS_DP && is_own(f)) {
			if (bytes == 0) {
				unlinkat(cache->dir, name, 0);
				unlinkat(cache->dir, path, AT_REMOVEDIR);
				continue;
			}
			used += bytes + CACHE_BLOCK; /* of its name */
			objects++;
		}
	}
	if (files)
		fts_close(files);
	if (cache->olds > 0)
		qsort(cache->old, cache->olds, sizeof(cache->old[0]), by_read);
	pthread_mutex_lock(&cache->lock);
	cache->status.used_bytes = used;
	cache->status.objects = objects;
	pthread_mutex_unlock(&cache->lock);
}

/* Removes a piece, unless it was read since the scan. False: the disk fails. */
static bool evict(struct store_cache *cache, const struct old *old)
{
	struct stat st;

	if (fstatat(cache->dir, old->path, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
		read_ns(&st) > old->read_ns)
		return true;
	if (unlinkat(cache->dir, old->path, 0) != 0) {
		failed(cache, errno, "cannot remove a piece");
		return false;
	}
	count(cache, &cache->status.used_bytes, -(int64_t)blocks((uint64_t)st.st_size));
	count(cache, &cache->status.evictions, 1);
	return true;
}

static bool fits(struct store_cache *cache, uint64_t bytes)
{
	pthread_mutex_lock(&cache->lock);
	bool fits = cache->status.used_bytes + bytes <= cache->status.size_bytes;

	pthread_mutex_unlock(&cache->lock);
	return fits;
}

/* Removes the pieces that were not read for the longest time, until @bytes more fit. In the turn.
 * False: they do not. */
static bool make_room(struct store_cache *cache, uint64_t bytes)
{
	bool scanned = false;

	while (!fits(cache, bytes)) {
		if (cache->next_old == cache->olds) {
			if (scanned)
				return false;
			scan(cache);
			scanned = true;
		} else if (!evict(cache, &cache->old[cache->next_old++])) {
			return false;
		}
	}
	return true;
}

/* ---- writing ---- */

/* Writes a file of two parts. 0 or an errno, and then there is no file. */
static int write_file(int dir, const char *path, int flags, const void *bytes, size_t n,
	const void *more, size_t m)
{
	const struct iovec parts[] = {{(void *)bytes, n}, {(void *)more, m}};
	int fd = openat(dir, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);

	if (fd < 0)
		return errno;
	ssize_t put = writev(fd, parts, 2);
	int error = put == (ssize_t)(n + m) ? 0 : put < 0 ? errno : ENOSPC;

	if (close(fd) != 0 && !error)
		error = errno;
	if (error)
		unlinkat(dir, path, 0);
	return error;
}

/* Makes the directory of an object, and names it, unless it is there. 0 or an errno. */
static int make_directory(struct store_cache *cache, const struct name *name)
{
	char path[PATH_BYTES];
	int error;

	snprintf(path, sizeof(path), "%.2s", name->dir);
	if ((mkdirat(cache->dir, path, 0700) != 0 && errno != EEXIST) ||
		(mkdirat(cache->dir, name->dir, 0700) != 0 && errno != EEXIST))
		return errno;
	snprintf(path, sizeof(path), "%s/name", name->dir);
	error = write_file(cache->dir, path, O_EXCL, name->text, name->n, NULL, 0);
	if (error)
		return error == EEXIST ? 0 : error;
	count(cache, &cache->status.objects, 1);
	count(cache, &cache->status.used_bytes, CACHE_BLOCK);
	return 0;
}

/* 0 or an errno. In the turn. */
static int write_piece(struct store_cache *cache, const struct name *name, uint32_t number,
	const void *bytes, size_t n)
{
	const struct seal seal = {XXH64(bytes, n, number), cache->daemon};
	char path[PATH_BYTES], new[PATH_BYTES];
	int error;

	piece_path(name->dir, number, path);
	if (faccessat(cache->dir, path, F_OK, 0) == 0)
		return 0;
	count(cache, &cache->status.misses, 1);
	if (!make_room(cache, blocks(file_bytes(n)) + CACHE_BLOCK))
		return 0;
	error = make_directory(cache, name);
	snprintf(new, sizeof(new), "%s/%" PRIu32 ".new", name->dir, number);
	if (!error)
		error = write_file(cache->dir, new, O_TRUNC, bytes, n, &seal, sizeof(seal));
	if (!error && renameat(cache->dir, new, cache->dir, path) != 0)
		error = errno;
	if (!error)
		count(cache, &cache->status.used_bytes, (int64_t)blocks(file_bytes(n)));
	return error;
}

void store_cache_put(
	struct store_cache *cache, const struct object *object, uint64_t piece, const void *bytes)
{
	uint64_t n = cache_piece_bytes(object->size, object->piece, piece);
	struct name name;
	int error;

	if (!store_cache_takes(cache) || !name_of(object, &name))
		return;
	pthread_mutex_lock(&cache->turn);
	error = write_piece(cache, &name, (uint32_t)piece, bytes, n);
	pthread_mutex_unlock(&cache->turn);
	if (error)
		failed(cache, error, "cannot write a piece");
}

/* ---- opening and closing ---- */

/* Finds the pieces of earlier daemons, and removes some if the size was reduced. */
static void *scan_thread(void *argument)
{
	struct store_cache *cache = argument;

	prctl(PR_SET_NAME, "tokend-cache");
	pthread_mutex_lock(&cache->turn);
	scan(cache);
	make_room(cache, 0);
	pthread_mutex_unlock(&cache->turn);
	return NULL;
}

struct store_cache *store_cache_open(
	const char *dir, uint64_t size, const struct store_options *options, struct fault *fault)
{
	struct store_cache *cache = calloc(1, sizeof(*cache));

	if (!cache) {
		fault_memory(fault);
		return NULL;
	}
	cache->daemon = (uint64_t)stores_random() << 32 | stores_random();
	snprintf(cache->status.dir, sizeof(cache->status.dir), "%s", dir);
	cache->status.size_bytes = size;
	cache->options = options;
	pthread_mutex_init(&cache->lock, NULL);
	pthread_mutex_init(&cache->turn, NULL);
	cache->dir = open_directory(dir, size, fault);
	if (cache->dir >= 0 && lock(cache->dir, dir, fault) &&
		stores_thread(&cache->scanner, scan_thread, cache, fault))
		return cache;
	if (cache->dir >= 0)
		close(cache->dir);
	free(cache);
	return NULL;
}

void store_cache_close(struct store_cache *cache)
{
	if (!cache)
		return;
	cache->closing = true;
	pthread_join(cache->scanner, NULL);
	pthread_mutex_destroy(&cache->turn);
	pthread_mutex_destroy(&cache->lock);
	close(cache->dir);
	free(cache->old);
	free(cache);
}

bool store_cache_status(struct stores *stores, struct store_cache_status *status)
{
	struct store_cache *cache = stores->cache;
	int64_t now = stores_now_ms();

	if (!cache)
		return false;
	pthread_mutex_lock(&cache->lock);
	*status = cache->status;
	if (now < cache->failing_until_ms)
		status->failing_s = (unsigned)((cache->failing_until_ms - now + 999) / 1000);
	status->last_ago_s = status->last[0] ? (now - cache->failed_ms) / 1000 : 0;
	pthread_mutex_unlock(&cache->lock);
	return true;
}
