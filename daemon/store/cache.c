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
	PATH_BYTES = 80,
	CHUNK = 256 << 10,
	TOUCH_S = 60, /* the time at which a piece was read is not written more often */
};

/* The end of a piece's file, after its bytes. */
struct seal {
	uint64_t sum;	 /* XXH64 of the bytes; the seed is the piece's number */
	uint64_t daemon; /* the last one that compared them */
};

/* A piece that a scan found. */
struct old {
	int64_t read_ns;
	uint32_t number;
	char dir[DIR_BYTES];
};

struct store_cache {
	int dir; /* locked */
	uint64_t daemon;
	void (*log)(void *context, const char *line);
	void *log_context;
	pthread_t scanner;
	_Atomic bool closing;

	pthread_mutex_t turn; /* to add and remove pieces */
	struct old *old; /* all pieces when they were last scanned, read least recently first */
	size_t olds, next_old;

	pthread_mutex_t lock; /* never held while the disk works */
	/* As store_cache_state() says it, but for the times. `dir` and size_bytes never change. */
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

/* ---- names and sizes ---- */

/* What the file `name` of an object contains. */
struct name {
	char text[NAME_BYTES]; /* URL, ETag, server, size, size of a piece, each with a zero */
	size_t n;
	char dir[DIR_BYTES]; /* "ab/HASH" */
};

static void set_dir(struct name *name)
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;
	char *end = name->dir + 3;

	sha256_init(&sha);
	sha256_update(&sha, name->n, (const uint8_t *)name->text);
	sha256_digest(&sha, sizeof(digest), digest);
	for (int i = 0; i < 16; i++)
		end += snprintf(end, 3, "%02x", digest[i]);
	memcpy(name->dir, name->dir + 3, 2);
	name->dir[2] = '/';
}

/* False: it does not fit. */
static bool name_of(const struct url_place *place, const struct object *object, struct name *name)
{
	int n = snprintf(name->text, NAME_BYTES, "%s/%s%c%s%c%s%s%c%" PRIu64 "%c%" PRIu32 "%c",
		place->name, object->key, 0, object->etag ? object->etag : "", 0, place->host,
		place->base, 0, object->size, 0, object->piece, 0);

	if (n < 0 || n >= NAME_BYTES)
		return false;
	name->n = (size_t)n;
	set_dir(name);
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

static void failed(struct store_cache *cache, int error, const char *what)
{
	char line[LIMIT_TEXT_BYTES];
	struct stat st;
	bool removed = error == ENOENT;

	/* Somebody may have removed a part of the cache. Only the cache itself is made again by no
	 * later piece. */
	if (removed && fstat(cache->dir, &st) == 0 && st.st_nlink > 0)
		return;
	pthread_mutex_lock(&cache->lock);
	bool first = stores_now_ms() >= cache->failing_until_ms;

	cache->failed_ms = stores_now_ms();
	cache->failing_until_ms = cache->failed_ms + CACHE_RETRY_S * 1000;
	if (removed)
		snprintf(cache->status.last, sizeof(cache->status.last),
			"the directory was removed");
	else
		snprintf(cache->status.last, sizeof(cache->status.last), "%s: %s", what,
			strerror(error));
	snprintf(line, sizeof(line), "cache %s: %s; windows are fetched singly%s",
		cache->status.dir, cache->status.last,
		removed ? " until the daemon is started again"
			: ", and it is tried again every minute");
	pthread_mutex_unlock(&cache->lock);
	if (first && cache->log)
		cache->log(cache->log_context, line);
}

/* A piece differs from its sum. The first one in CACHE_RETRY_S is logged: a damaged disk has many.
 */
static void say_damaged(struct store_cache *cache, const char *key, uint32_t number)
{
	char line[LIMIT_TEXT_BYTES];
	int64_t now = stores_now_ms();

	pthread_mutex_lock(&cache->lock);
	bool due = now >= cache->damage_due_ms;

	cache->status.mismatches++;
	if (due)
		cache->damage_due_ms = now + CACHE_RETRY_S * 1000;
	pthread_mutex_unlock(&cache->lock);
	if (!due || !cache->log)
		return;
	snprintf(line, sizeof(line),
		"cache %s: piece %" PRIu32
		" of %s differs from its sum; it is fetched again. If that happens again, look for "
		"errors of the disk",
		cache->status.dir, number, key);
	cache->log(cache->log_context, line);
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

bool store_cache_read(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t at, void *to, size_t n)
{
	uint32_t number = (uint32_t)(at / object->piece);
	uint64_t bytes = cache_piece_bytes(object->size, object->piece, number);
	char path[PATH_BYTES];
	struct name name;
	struct stat st;

	assert(n > 0 && at % object->piece + n <= bytes);
	if (!name_of(place, object, &name))
		return false;
	piece_path(name.dir, number, path);
	int fd = openat(cache->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), error = 0;

	if (fd < 0)
		error = errno;
	else
		error = read_file(cache, fd, bytes, number, at % object->piece, to, n);
	if (error == EBADMSG)
		say_damaged(cache, object->key, number);
	else if (error && error != ENOENT)
		failed(cache, error, "cannot read a piece");
	else if (!error)
		count(cache, &cache->status.hits, 1);
	/* Another thread may have removed it, and fetched it again. */
	if (fd >= 0 && error && fstat(fd, &st) == 0 && st.st_nlink > 0 &&
		unlinkat(cache->dir, path, 0) == 0)
		count(cache, &cache->status.used_bytes, -(int64_t)blocks((uint64_t)st.st_size));
	if (fd >= 0)
		close(fd);
	return !error;
}

/* ---- all pieces ---- */

/* Goes through all files of the cache. */
struct walk {
	struct store_cache *cache;
	size_t root;	 /* bytes of a path before the part in the directory */
	const char *url; /* pieces of objects whose URL begins so are removed; NULL: none are */
	uint64_t most, dropped;
	size_t room;		 /* of cache->old */
	uint64_t bytes, objects; /* so far */
	/* The object whose directory it is in, and its pieces that stay. */
	struct name name; /* n 0: it has none */
	uint64_t pieces, piece_bytes;
};

/* Enters the directory of an object. */
static void enter(struct walk *w, const FTSENT *f)
{
	struct name *name = &w->name;
	char path[PATH_BYTES];

	snprintf(path, sizeof(path), "%s/name", f->fts_path + w->root);
	int fd = openat(w->cache->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd < 0 ? -1 : read(fd, name->text, sizeof(name->text));

	if (fd >= 0)
		close(fd);
	w->pieces = w->piece_bytes = 0;
	name->n = n > 0 && n < NAME_BYTES && name->text[n - 1] == 0 ? (size_t)n : 0;
	set_dir(name);
	if (strcmp(name->dir + 3, f->fts_name) != 0)
		name->n = 0;
}

/* Whether a file in it is a piece, and stays. */
static bool keeps(struct walk *w, const FTSENT *f)
{
	struct store_cache *cache = w->cache;
	char *end;
	uint32_t number = (uint32_t)strtoul(f->fts_name, &end, 10);

	if (w->name.n == 0 || end == f->fts_name || strcmp(end, ".piece") != 0 ||
		f->fts_info != FTS_F)
		return false;
	if (w->url && w->dropped < w->most && strncmp(w->name.text, w->url, strlen(w->url)) == 0) {
		w->dropped++;
		return false;
	}
	w->pieces++;
	w->piece_bytes += blocks((uint64_t)f->fts_statp->st_size);
	if (cache->olds == w->room) {
		size_t room = 2 * w->room + 1024;
		struct old *more = reallocarray(cache->old, room, sizeof(*more));

		if (!more)
			return true; /* it stays until the next scan */
		cache->old = more;
		w->room = room;
	}
	struct old *old = &cache->old[cache->olds++];

	*old = (struct old){read_ns(f->fts_statp), number, ""};
	memcpy(old->dir, w->name.dir, DIR_BYTES);
	return true;
}

/* Leaves the directory of an object. */
static void leave(struct walk *w, const FTSENT *f)
{
	char path[PATH_BYTES];

	w->piece_bytes += blocks(w->name.n);
	if (w->pieces > 0) {
		w->objects++;
		w->bytes += w->piece_bytes;
	} else {
		snprintf(path, sizeof(path), "%s/name", f->fts_path + w->root);
		unlinkat(w->cache->dir, path, 0);
		unlinkat(w->cache->dir, f->fts_path + w->root, AT_REMOVEDIR);
	}
}

/* Whether a directory is the cache's: "ab" or "ab/HASH". Somebody may have others next to it. */
static bool is_own(const FTSENT *f)
{
	size_t n = strlen(f->fts_name);

	return n == (f->fts_level == 1 ? 2 : 32) && strspn(f->fts_name, "0123456789abcdef") == n;
}

static void walk(struct walk *w)
{
	char root[32], *const roots[] = {root, NULL};
	FTSENT *f;

	w->root = (size_t)snprintf(root, sizeof(root), "/proc/self/fd/%d/", w->cache->dir);
	FTS *files = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);

	/* dir/ab/HASH/FILE: levels 1 to 3 */
	while (files && (f = fts_read(files)) && !w->cache->closing) {
		if (f->fts_level > 0 && f->fts_info == FTS_D && !is_own(f))
			fts_set(files, f, FTS_SKIP);
		else if (f->fts_level == 2 && f->fts_info == FTS_D)
			enter(w, f);
		else if (f->fts_level == 2 && f->fts_info == FTS_DP && is_own(f))
			leave(w, f);
		else if (f->fts_level == 3 && strcmp(f->fts_name, "name") != 0 && !keeps(w, f))
			unlinkat(w->cache->dir, f->fts_path + w->root, 0);
	}
	if (files)
		fts_close(files);
}

static int by_read(const void *a, const void *b)
{
	int64_t x = ((const struct old *)a)->read_ns, y = ((const struct old *)b)->read_ns;

	return (x > y) - (x < y);
}

/* Finds all pieces. Removes all other files, and up to @most pieces of objects whose URL begins
 * with @url. Returns how many. In the turn. */
static uint64_t scan(struct store_cache *cache, const char *url, uint64_t most)
{
	struct walk w = {.cache = cache, .url = url, .most = most};

	free(cache->old);
	cache->old = NULL;
	cache->olds = cache->next_old = 0;
	walk(&w);
	if (cache->olds > 0)
		qsort(cache->old, cache->olds, sizeof(cache->old[0]), by_read);
	pthread_mutex_lock(&cache->lock);
	cache->status.used_bytes = w.bytes;
	cache->status.objects = w.objects;
	pthread_mutex_unlock(&cache->lock);
	return w.dropped;
}

uint64_t store_cache_drop(struct store_cache *cache, const char *url, uint64_t most)
{
	pthread_mutex_lock(&cache->turn);
	uint64_t dropped = scan(cache, url, most);

	pthread_mutex_unlock(&cache->turn);
	return dropped;
}

/* ---- removing ---- */

/* Removes a piece, unless it was read since the scan. False: the disk fails. */
static bool evict(struct store_cache *cache, const struct old *old)
{
	char path[PATH_BYTES];
	struct stat st;

	piece_path(old->dir, old->number, path);
	if (fstatat(cache->dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0 || read_ns(&st) > old->read_ns)
		return true;
	if (unlinkat(cache->dir, path, 0) != 0) {
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
			scan(cache, NULL, 0);
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
	if (mkdirat(cache->dir, path, 0700) != 0 && errno != EEXIST)
		return errno;
	if (mkdirat(cache->dir, name->dir, 0700) != 0 && errno != EEXIST)
		return errno;
	snprintf(path, sizeof(path), "%s/name", name->dir);
	error = write_file(cache->dir, path, O_EXCL, name->text, name->n, NULL, 0);
	if (error)
		return error == EEXIST ? 0 : error;
	count(cache, &cache->status.objects, 1);
	count(cache, &cache->status.used_bytes, (int64_t)blocks(name->n));
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
	if (!make_room(cache, blocks(file_bytes(n)) + blocks(name->n)))
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

void store_cache_put(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece, const void *bytes)
{
	uint64_t n = cache_piece_bytes(object->size, object->piece, piece);
	struct name name;
	int error;

	if (!store_cache_takes(cache) || !name_of(place, object, &name))
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
	scan(cache, NULL, 0);
	make_room(cache, 0);
	pthread_mutex_unlock(&cache->turn);
	return NULL;
}

struct store_cache *store_cache_open(const char *dir, uint64_t size,
	void (*log)(void *context, const char *line), void *context, struct fault *fault)
{
	struct store_cache *cache = calloc(1, sizeof(*cache));

	if (!cache) {
		fault_memory(fault);
		return NULL;
	}
	cache->dir = cache_dir_take(dir, size, fault);
	if (cache->dir < 0) {
		free(cache);
		return NULL;
	}
	cache->daemon = (uint64_t)stores_random() << 32 | stores_random();
	snprintf(cache->status.dir, sizeof(cache->status.dir), "%s", dir);
	cache->status.size_bytes = size;
	cache->log = log;
	cache->log_context = context;
	pthread_mutex_init(&cache->lock, NULL);
	pthread_mutex_init(&cache->turn, NULL);
	if (stores_thread(&cache->scanner, scan_thread, cache, fault))
		return cache;
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

void store_cache_state(struct store_cache *cache, struct store_cache_status *status)
{
	int64_t now = stores_now_ms();

	pthread_mutex_lock(&cache->lock);
	*status = cache->status;
	if (now < cache->failing_until_ms)
		status->failing_s = (unsigned)((cache->failing_until_ms - now + 999) / 1000);
	status->last_ago_s = status->last[0] ? (now - cache->failed_ms) / 1000 : 0;
	pthread_mutex_unlock(&cache->lock);
}
