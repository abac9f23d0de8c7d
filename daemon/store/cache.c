#include "daemon/store/internal.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	HASH_BYTES = 16,
	FILE_BYTES = sizeof("0123456789abcdef0123456789abcdef.4294967295"),
	TOUCH_S = 60,	      /* the time at which a piece was read is not written more often */
	RETRY_MS = 60 * 1000, /* after a fault of the disk */
	SPARE_SHARE = 32,     /* of the cache, that is freed at once */
};

static const char NEW[] = "new"; /* the file of a piece until it is whole */

struct store_cache {
	int dir; /* locked */
	const struct store_options *options;

	char path[256];
	uint64_t size_bytes;
	_Atomic uint64_t used_bytes, hits, misses, evictions, mismatches;
	pthread_mutex_t turn; /* to add and remove pieces */
	pthread_mutex_t lock; /* of `last`; never held while the disk works */
	char last[160];
	/* A minute after a fault of the disk; after a log line about damage. */
	_Atomic int64_t failing_until_ms, damage_due_ms;
};

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
	if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
			"%s: others may write to it: it belongs to user %u, mode %03o; run `chown "
			"%u` and `chmod 700`",
			path, (unsigned)st.st_uid, (unsigned)st.st_mode & 0777,
			(unsigned)geteuid());
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

/* Two daemons would each fill the cache. */
static bool lock(int dir, const char *path, struct fault *fault)
{
	if (flock(dir, LOCK_EX | LOCK_NB) == 0)
		return true;
	if (errno != EWOULDBLOCK)
		return refuse_errno(fault, path, "cannot be locked");
	return fault_set(fault, FAULT_ARGUMENT, "cache.dir",
		"%s: another daemon uses it; each daemon needs its own", path);
}

bool store_cache_suits(const char *dir, uint64_t size, struct fault *fault)
{
	int fd = open_directory(dir, size, fault);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* ---- names and sizes ---- */

/* Names an object, and the file of one of its pieces. False: its name is too long. @name: URL,
 * ETag, server, sizes of the object and of a piece, each with a zero. */
static bool name_piece(
	const struct object *object, uint64_t number, char name[CACHE_BLOCK], char file[FILE_BYTES])
{
	const struct url_place *place = &object->bucket->place;
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;

	memset(name, 0, CACHE_BLOCK);
	int n = snprintf(name, CACHE_BLOCK, "%s/%s%c%s%c%s%s%c%" PRIu64 "%c%" PRIu32 "%c",
		place->name, object->key, 0, object->etag ? object->etag : "", 0, place->host,
		place->base, 0, object->size, 0, object->piece, 0);

	if (n >= CACHE_BLOCK)
		return false;
	sha256_init(&sha);
	sha256_update(&sha, (size_t)n, (const uint8_t *)name);
	sha256_digest(&sha, sizeof(digest), digest);
	base16_encode_update(file, HASH_BYTES, digest);
	snprintf(file + 2 * HASH_BYTES, FILE_BYTES - 2 * HASH_BYTES, ".%" PRIu32, (uint32_t)number);
	return true;
}

/* Whether a file is a piece. Somebody may have others in the directory. */
static bool is_piece(const char *file)
{
	return strspn(file, "0123456789abcdef") == 2 * HASH_BYTES && file[2 * HASH_BYTES] == '.' &&
	       strlen(file) < FILE_BYTES;
}

/* The disk blocks of a file. */
static uint64_t blocks(uint64_t bytes)
{
	return (bytes + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK;
}

/* The sums of @n bytes. */
static size_t sums_bytes(uint64_t n)
{
	return blocks(n) / CACHE_BLOCK * sizeof(uint64_t);
}

static int64_t ns(const struct timespec *time)
{
	return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

/* ---- faults of the disk ---- */

bool store_cache_takes(struct store_cache *cache)
{
	return stores_now_ms() >= cache->failing_until_ms;
}

/* Whether a line may be logged: one of its kind a minute. */
static bool is_due(_Atomic int64_t *due_ms)
{
	int64_t now = stores_now_ms();

	if (now < *due_ms)
		return false;
	*due_ms = now + RETRY_MS;
	return true;
}

static void failed(struct store_cache *cache, int error, const char *what)
{
	struct stat st;

	/* Somebody may have removed a part of the cache. Only the cache itself is made again by no
	 * later piece. */
	if (error == ENOENT && fstat(cache->dir, &st) == 0 && st.st_nlink > 0)
		return;
	pthread_mutex_lock(&cache->lock);
	snprintf(cache->last, sizeof(cache->last), "%s: %s", what, strerror(error));
	pthread_mutex_unlock(&cache->lock);
	if (is_due(&cache->failing_until_ms))
		stores_log(cache->options, "cache %s: %s: %s; windows are fetched singly%s",
			cache->path, what, strerror(error),
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

/* Makes the XXH3 of each block of @n bytes, which begin with block @first of the piece @file. The
 * seed is of both, so the bytes of another piece are found. */
static void make_sums(
	const uint8_t *bytes, uint64_t n, const char *file, uint64_t first, uint64_t *sums)
{
	uint64_t seed = XXH3_64bits(file, strlen(file)) + first;

	for (uint64_t at = 0; at < n; at += CACHE_BLOCK)
		*sums++ = XXH3_64bits_withSeed(
			bytes + at, n - at < CACHE_BLOCK ? n - at : CACHE_BLOCK, seed++);
}

/* Notes that a piece is read: not every file system is mounted so that it does this. */
static void touch(int fd, const struct stat *st)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};

	if (ns(&st->st_atim) <= ns(&st->st_mtim) || st->st_atim.tv_sec + TOUCH_S < time(NULL))
		futimens(fd, times);
}

/* Reads from the file of a piece of @bytes, and compares the blocks with their sums. 0 or an
 * errno; EBADMSG: it is damaged. */
static int read_file(int fd, const char *file, uint64_t bytes, uint64_t at, void *to, size_t n)
{
	uint64_t first = at / CACHE_BLOCK, from = first * CACHE_BLOCK, end = blocks(at + n);
	struct stat st;

	if (fstat(fd, &st) != 0)
		return errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes + sums_bytes(bytes) + CACHE_BLOCK)
		return EBADMSG;
	end = end < bytes ? end : bytes;
	size_t some = sums_bytes(end - from);
	uint8_t *sums = malloc(2 * some + end - from);

	if (!sums)
		return ENOMEM;
	uint8_t *right = sums + some, *body = right + some;
	int error = read_at(fd, bytes + sums_bytes(from), right, some);

	if (!error)
		error = read_at(fd, from, body, end - from);
	if (!error) {
		make_sums(body, end - from, file, first, (uint64_t *)sums);
		error = memcmp(sums, right, some) == 0 ? 0 : EBADMSG;
	}
	if (!error) {
		memcpy(to, body + (at - from), n);
		touch(fd, &st);
	}
	free(sums);
	return error;
}

bool store_cache_read(
	struct store_cache *cache, const struct object *object, uint64_t at, void *to, size_t n)
{
	uint32_t number = (uint32_t)(at / object->piece);
	uint64_t bytes = cache_piece_bytes(object->size, object->piece, number);
	char file[FILE_BYTES], name[CACHE_BLOCK];
	struct stat st;

	assert(n > 0 && at % object->piece + n <= bytes);
	if (!name_piece(object, number, name, file))
		return false;
	int fd = openat(cache->dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), error = 0;

	if (fd < 0)
		error = errno;
	else
		error = read_file(fd, file, bytes, at % object->piece, to, n);
	if (!error)
		cache->hits++;
	if (error == EBADMSG) {
		cache->mismatches++;
		if (is_due(&cache->damage_due_ms))
			stores_log(cache->options,
				"cache %s: piece %" PRIu32
				" of %s differs from its sum; it is fetched again. If that happens "
				"again, look for errors of the disk",
				cache->path, number, object->key);
	} else if (error && error != ENOENT) {
		failed(cache, error, "cannot read a piece");
	}
	/* Another thread may have removed it, and fetched it again. */
	if ((error == EBADMSG || error == EIO) && fstat(fd, &st) == 0 && st.st_nlink > 0 &&
		unlinkat(cache->dir, file, 0) == 0)
		cache->used_bytes -= blocks((uint64_t)st.st_size);
	if (fd >= 0)
		close(fd);
	return !error;
}

/* ---- all pieces ---- */

/* What a scan found. */
struct found {
	struct piece {
		int64_t read_ns;
		uint64_t bytes; /* on the disk */
		char file[FILE_BYTES];
	} * piece;
	size_t n, room;
};

static void note(struct found *found, const char *file, const struct stat *st)
{
	if (found->n == found->room) {
		size_t room = 2 * found->room + 1024;
		struct piece *more = reallocarray(found->piece, room, sizeof(*more));

		if (!more)
			return; /* it stays until the next scan */
		found->piece = more;
		found->room = room;
	}
	struct piece *piece = &found->piece[found->n++];

	piece->read_ns = ns(&st->st_atim);
	piece->bytes = blocks((uint64_t)st->st_size);
	snprintf(piece->file, FILE_BYTES, "%.*s", FILE_BYTES - 1, file);
}

/* The one that was not read for the longest time is first. */
static int by_read(const void *a, const void *b)
{
	int64_t x = ((const struct piece *)a)->read_ns, y = ((const struct piece *)b)->read_ns;

	return (x > y) - (x < y);
}

/* Finds all pieces, and adds them up. In the turn. */
static void scan(struct store_cache *cache, struct found *found)
{
	int fd = openat(cache->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *files = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *entry;
	uint64_t used = 0;
	struct stat st;

	while (files && (entry = readdir(files))) {
		if (!is_piece(entry->d_name) ||
			fstatat(cache->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		used += blocks((uint64_t)st.st_size);
		note(found, entry->d_name, &st);
	}
	if (files)
		closedir(files);
	else if (fd >= 0)
		close(fd);
	if (found->n > 0)
		qsort(found->piece, found->n, sizeof(found->piece[0]), by_read);
	cache->used_bytes = used;
}

/* Whether @bytes more are within the size. */
static bool fits(const struct store_cache *cache, uint64_t bytes)
{
	return cache->used_bytes + bytes <= cache->size_bytes;
}

/* Removes the pieces that were not read for the longest time until @bytes more fit, and some more,
 * so that the next ones need no scan. In the turn. */
static void make_room(struct store_cache *cache, uint64_t bytes)
{
	uint64_t spare = cache->size_bytes / SPARE_SHARE;
	struct found found = {0};

	scan(cache, &found);
	if (!fits(cache, bytes))
		for (size_t i = 0; i < found.n && !fits(cache, bytes + spare); i++) {
			if (unlinkat(cache->dir, found.piece[i].file, 0) != 0 && errno != ENOENT) {
				failed(cache, errno, "cannot remove a piece");
				break;
			}
			cache->used_bytes -= found.piece[i].bytes;
			cache->evictions++;
		}
	free(found.piece);
}

/* ---- writing ---- */

/* 0 or an errno. */
static int write_file(int dir, const struct iovec parts[3])
{
	int fd = openat(dir, NEW, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return errno;
	ssize_t put = writev(fd, parts, 3);
	size_t whole = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
	int error = put == (ssize_t)whole ? 0 : put < 0 ? errno : ENOSPC;

	if (close(fd) != 0 && !error)
		error = errno;
	return error;
}

/* 0 or an errno. In the turn. */
static int write_piece(struct store_cache *cache, const char *file, const struct iovec parts[3])
{
	uint64_t more = blocks(parts[0].iov_len + parts[1].iov_len + parts[2].iov_len);

	if (faccessat(cache->dir, file, F_OK, 0) == 0)
		return 0;
	cache->misses++;
	if (!fits(cache, more))
		make_room(cache, more);
	if (!fits(cache, more))
		return 0;
	int error = write_file(cache->dir, parts);

	if (!error && renameat(cache->dir, NEW, cache->dir, file) != 0)
		error = errno;
	if (!error)
		cache->used_bytes += more;
	else
		unlinkat(cache->dir, NEW, 0);
	return error;
}

void store_cache_put(
	struct store_cache *cache, const struct object *object, uint64_t piece, const void *bytes)
{
	uint64_t n = cache_piece_bytes(object->size, object->piece, piece);
	char file[FILE_BYTES], name[CACHE_BLOCK];

	if (!store_cache_takes(cache) || !name_piece(object, piece, name, file))
		return;
	uint64_t *sums = malloc(sums_bytes(n));
	const struct iovec parts[] = {
		{(void *)bytes, n}, {sums, sums_bytes(n)}, {name, CACHE_BLOCK}};
	int error = ENOMEM;

	if (sums) {
		make_sums(bytes, n, file, 0, sums);
		pthread_mutex_lock(&cache->turn);
		error = write_piece(cache, file, parts);
		pthread_mutex_unlock(&cache->turn);
	}
	free(sums);
	if (error)
		failed(cache, error, "cannot write a piece");
}

/* ---- opening and closing ---- */

struct store_cache *store_cache_open(
	const char *dir, uint64_t size, const struct store_options *options, struct fault *fault)
{
	struct store_cache *cache = calloc(1, sizeof(*cache));

	if (!cache) {
		fault_memory(fault);
		return NULL;
	}
	snprintf(cache->path, sizeof(cache->path), "%s", dir);
	cache->size_bytes = size;
	cache->options = options;
	pthread_mutex_init(&cache->lock, NULL);
	pthread_mutex_init(&cache->turn, NULL);
	cache->dir = open_directory(dir, size, fault);
	if (cache->dir >= 0 && lock(cache->dir, dir, fault)) {
		unlinkat(cache->dir, NEW, 0); /* of a daemon that was killed */
		make_room(cache, 0);	      /* the size may have been reduced */
		return cache;
	}
	if (cache->dir >= 0)
		close(cache->dir);
	free(cache);
	return NULL;
}

void store_cache_close(struct store_cache *cache)
{
	if (!cache)
		return;
	pthread_mutex_destroy(&cache->turn);
	pthread_mutex_destroy(&cache->lock);
	close(cache->dir);
	free(cache);
}

bool store_cache_status(struct stores *stores, struct store_cache_status *status)
{
	struct store_cache *cache = stores->cache;

	if (!cache)
		return false;
	*status = (struct store_cache_status){
		.size_bytes = cache->size_bytes,
		.used_bytes = cache->used_bytes,
		.hits = cache->hits,
		.misses = cache->misses,
		.evictions = cache->evictions,
		.mismatches = cache->mismatches,
	};
	memcpy(status->dir, cache->path, sizeof(status->dir));
	pthread_mutex_lock(&cache->lock);
	memcpy(status->last, cache->last, sizeof(status->last));
	pthread_mutex_unlock(&cache->lock);
	int64_t left_ms = cache->failing_until_ms - stores_now_ms();

	status->failing_s = left_ms > 0 ? (unsigned)((left_ms + 999) / 1000) : 0;
	status->last_ago_s = status->last[0] ? (RETRY_MS - left_ms) / 1000 : 0;
	return true;
}
