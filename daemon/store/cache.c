#include "daemon/store/cache.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	HASH_BYTES = 16,
	NAME_BYTES = 4096, /* of an object with a longer name nothing is cached */
	PATH_BYTES = 80,
	CHAINS = 1 << 14,
	CHUNK = 256 << 10,
};

struct hash {
	uint8_t byte[HASH_BYTES];
};

struct piece {
	TAILQ_ENTRY(piece) use; /* once it is whole: read least recently first */
	struct entry *entry;
	uint64_t sum;
	uint32_t number;
	bool whole;    /* otherwise it is being written */
	bool verified; /* since the start */
};

/* An object. It exists while it has pieces. */
struct entry {
	struct entry *next; /* of its chain */
	struct hash hash;
	uint64_t size, bytes; /* bytes: of its files' blocks */
	uint32_t piece, pieces, present;
	struct piece **at; /* [pieces]; NULL: absent */
	char url[];
};

struct store_cache {
	int dir; /* locked */
	void (*log)(void *context, const char *line);
	void *log_context;
	pthread_t scanner;

	/* The lock is never held while the disk works. */
	pthread_mutex_t lock;
	bool ready;
	_Atomic bool closing;
	struct entry *chain[CHAINS];
	TAILQ_HEAD(pieces, piece) uses;
	/* As store_cache_state() says it, but for the times. used_bytes has pieces that are being
	 * written, too; `dir` and size_bytes never change. */
	struct store_cache_status status;
	int64_t failing_until_ms, failed_ms;
	int64_t damage_due_ms; /* until then no damaged piece is logged */
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK;
}

/* ---- names ---- */

/* What the file `name` of an object contains. */
struct name {
	char text[NAME_BYTES]; /* URL, ETag, server, size, size of a piece, each ending with a zero
				*/
	size_t n;
	struct hash hash;
};

static void hash_name(struct name *name)
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;

	sha256_init(&sha);
	sha256_update(&sha, name->n, (const uint8_t *)name->text);
	sha256_digest(&sha, sizeof(digest), digest);
	memcpy(name->hash.byte, digest, HASH_BYTES);
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
	hash_name(name);
	return true;
}

/* Writes "ab/HASH". */
static int path_of(const struct hash *hash, char path[PATH_BYTES])
{
	int n = snprintf(path, PATH_BYTES, "%02x/", hash->byte[0]);

	for (int i = 0; i < HASH_BYTES; i++)
		n += snprintf(path + n, PATH_BYTES - (size_t)n, "%02x", hash->byte[i]);
	return n;
}

static void piece_path(
	const struct hash *hash, uint32_t number, uint64_t sum, char path[PATH_BYTES])
{
	int n = path_of(hash, path);

	snprintf(path + n, PATH_BYTES - (size_t)n, "/%" PRIu32 ".%016" PRIx64, number, sum);
}

/* ---- faults of the disk ---- */

static bool is_failing(const struct store_cache *cache)
{
	return now_ms() < cache->failing_until_ms;
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
	bool first = !is_failing(cache);

	cache->failed_ms = now_ms();
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
	int64_t now = now_ms();

	pthread_mutex_lock(&cache->lock);
	bool due = now >= cache->damage_due_ms;

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

/* ---- the index; locked ---- */

static struct entry **chain_of(struct store_cache *cache, const struct hash *hash)
{
	return &cache->chain[(hash->byte[1] | (unsigned)hash->byte[2] << 8) % CHAINS];
}

static struct entry *find(struct store_cache *cache, const struct hash *hash)
{
	struct entry *e = *chain_of(cache, hash);

	while (e && memcmp(e->hash.byte, hash->byte, HASH_BYTES) != 0)
		e = e->next;
	return e;
}

/* NULL: absent, or being written. */
static struct piece *find_piece(struct store_cache *cache, const struct hash *hash, uint32_t number)
{
	const struct entry *e = find(cache, hash);
	struct piece *p = e ? e->at[number] : NULL;

	return p && p->whole ? p : NULL;
}

/* NULL: out of memory, or the name is none. */
static struct entry *add_entry(struct store_cache *cache, const struct name *name)
{
	const char *field[5], *end = name->text + name->n;
	unsigned fields = 0;

	for (const char *at = name->text; fields < 5 && at < end; at += strlen(at) + 1)
		field[fields++] = at;
	uint64_t size = fields == 5 ? strtoull(field[3], NULL, 10) : 0,
		 piece = fields == 5 ? strtoull(field[4], NULL, 10) : 0;

	if (size == 0 || piece == 0 || piece > UINT32_MAX || (size - 1) / piece >= UINT32_MAX)
		return NULL;
	struct entry *e = calloc(1, sizeof(*e) + strlen(field[0]) + 1);
	struct entry **chain = chain_of(cache, &name->hash);

	if (!e)
		return NULL;
	e->hash = name->hash;
	e->size = size;
	e->piece = (uint32_t)piece;
	e->pieces = (uint32_t)((size - 1) / piece + 1);
	e->at = calloc(e->pieces, sizeof(struct piece *));
	if (!e->at) {
		free(e);
		return NULL;
	}
	strcpy(e->url, field[0]);
	e->bytes = blocks(name->n);
	e->next = *chain;
	*chain = e;
	cache->status.objects++;
	cache->status.used_bytes += e->bytes;
	return e;
}

/* NULL: out of memory. */
static struct piece *add_piece(struct store_cache *cache, struct entry *e, uint32_t number)
{
	struct piece *p = calloc(1, sizeof(*p));
	uint64_t bytes = blocks(cache_piece_bytes(e->size, e->piece, number));

	if (!p)
		return NULL;
	assert(!e->at[number]);
	p->entry = e;
	p->number = number;
	e->at[number] = p;
	e->present++;
	e->bytes += bytes;
	cache->status.used_bytes += bytes;
	return p;
}

static void whole(struct store_cache *cache, struct piece *p, uint64_t sum)
{
	p->sum = sum;
	p->whole = true;
	TAILQ_INSERT_TAIL(&cache->uses, p, use);
}

/* Frees an object that has no pieces. */
static void end_entry(struct store_cache *cache, struct entry *e)
{
	struct entry **at = chain_of(cache, &e->hash);

	assert(e->present == 0);
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	cache->status.used_bytes -= e->bytes;
	cache->status.objects--;
	free(e->at);
	free(e);
}

/* Forgets a piece. Returns whether it was the object's last one, which is forgotten, too. */
static bool forget(struct store_cache *cache, struct piece *p)
{
	struct entry *e = p->entry;
	uint64_t bytes = blocks(cache_piece_bytes(e->size, e->piece, p->number));

	if (p->whole)
		TAILQ_REMOVE(&cache->uses, p, use);
	e->at[p->number] = NULL;
	e->bytes -= bytes;
	cache->status.used_bytes -= bytes;
	free(p);
	if (--e->present > 0)
		return false;
	end_entry(cache, e);
	return true;
}

/* ---- removing ---- */

/* Another thread may be making the directory again: then it is not empty, and stays. */
static void remove_directory(struct store_cache *cache, const struct hash *hash)
{
	char path[PATH_BYTES];
	int n = path_of(hash, path);

	strcpy(path + n, "/name");
	unlinkat(cache->dir, path, 0);
	path[n] = 0;
	unlinkat(cache->dir, path, AT_REMOVEDIR);
}

/* Forgets the piece, so that nobody opens it any more, and removes its file. Locked; unlocked
 * meanwhile. */
static void remove_piece(struct store_cache *cache, struct piece *p)
{
	const struct hash hash = p->entry->hash;
	char path[PATH_BYTES];

	assert(p->whole);
	piece_path(&hash, p->number, p->sum, path);
	bool last = forget(cache, p);

	pthread_mutex_unlock(&cache->lock);
	int error = unlinkat(cache->dir, path, 0) == 0 ? 0 : errno;

	if (last)
		remove_directory(cache, &hash);
	if (error)
		failed(cache, error, "cannot remove a piece");
	pthread_mutex_lock(&cache->lock);
}

/* Removes pieces until @bytes more fit. Locked; unlocked meanwhile. False: they do not. */
static bool make_room(struct store_cache *cache, uint64_t bytes)
{
	struct piece *oldest;

	while (cache->status.used_bytes + bytes > cache->status.size_bytes &&
		(oldest = TAILQ_FIRST(&cache->uses))) {
		cache->status.evictions++;
		remove_piece(cache, oldest);
	}
	return cache->status.used_bytes + bytes <= cache->status.size_bytes;
}

/* ---- reading ---- */

/* Compares a file with its sum and its length. 0 or an errno; EBADMSG: it is another one. */
static int verify(int fd, uint64_t bytes, uint64_t sum)
{
	XXH64_state_t state;
	char *chunk = malloc(CHUNK);
	uint64_t done = 0;
	ssize_t got;

	if (!chunk)
		return ENOMEM;
	XXH64_reset(&state, 0);
	do {
		got = pread(fd, chunk, CHUNK, (off_t)done);
		if (got > 0) {
			XXH64_update(&state, chunk, (size_t)got);
			done += (uint64_t)got;
		}
	} while (got > 0 || (got < 0 && errno == EINTR));
	int error = got < 0 ? errno : 0;

	free(chunk);
	if (error)
		return error;
	return done == bytes && XXH64_digest(&state) == sum ? 0 : EBADMSG;
}

static int read_all(int fd, uint64_t at, char *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = pread(fd, to + done, n - done, (off_t)(at + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? errno : EBADMSG;
		done += (size_t)got;
	}
	return 0;
}

/* After reading a piece with @sum, by @error. The piece may have been replaced meanwhile. */
static void was_read(struct store_cache *cache, const struct hash *hash, uint32_t number,
	uint64_t sum, int error)
{
	struct piece *p;

	pthread_mutex_lock(&cache->lock);
	p = find_piece(cache, hash, number);
	if (error == 0)
		cache->status.hits++;
	if (p && p->sum == sum && error == 0)
		p->verified = true;
	if (p && p->sum == sum && error != 0) {
		cache->status.mismatches += error == EBADMSG;
		remove_piece(cache, p);
	}
	pthread_mutex_unlock(&cache->lock);
}

bool store_cache_read(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t at, void *to, size_t n)
{
	uint32_t number = (uint32_t)(at / object->piece);
	uint64_t bytes = cache_piece_bytes(object->size, object->piece, number), sum = 0;
	bool verified = false;
	char path[PATH_BYTES];
	struct name name;
	struct piece *p;
	int error = 0;

	assert(n > 0 && at % object->piece + n <= bytes);
	if (!name_of(place, object, &name))
		return false;
	pthread_mutex_lock(&cache->lock);
	p = find_piece(cache, &name.hash, number);
	if (p) {
		TAILQ_REMOVE(&cache->uses, p, use);
		TAILQ_INSERT_TAIL(&cache->uses, p, use);
		verified = p->verified;
		sum = p->sum;
	}
	pthread_mutex_unlock(&cache->lock);
	if (!p)
		return false;
	piece_path(&name.hash, number, sum, path);
	int fd = openat(cache->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		error = errno;
	if (!error && !verified)
		error = verify(fd, bytes, sum);
	if (!error)
		error = read_all(fd, at % object->piece, to, n);
	if (fd >= 0)
		close(fd);
	was_read(cache, &name.hash, number, sum, error);
	if (error == EBADMSG)
		say_damaged(cache, object->key, number);
	else if (error)
		failed(cache, error, "cannot read a piece");
	return !error;
}

/* ---- writing ---- */

static int write_all(int fd, const char *from, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t put = write(fd, from + done, n - done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? errno : EIO;
		done += (size_t)put;
	}
	return 0;
}

/* 0 or an errno. */
static int write_file(int dir, const char *path, int flags, const void *bytes, size_t n)
{
	int fd = openat(dir, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	int error = fd < 0 ? errno : write_all(fd, bytes, n);

	if (fd >= 0 && close(fd) != 0 && !error)
		error = errno;
	return error;
}

/* Makes the directory of an object, and names it. 0 or an errno. */
static int make_directory(int dir, const struct name *name)
{
	char path[PATH_BYTES];
	int n = path_of(&name->hash, path), error;

	path[2] = 0;
	if (mkdirat(dir, path, 0700) != 0 && errno != EEXIST)
		return errno;
	path[2] = '/';
	if (mkdirat(dir, path, 0700) != 0 && errno != EEXIST)
		return errno;
	strcpy(path + n, "/name");
	error = write_file(dir, path, O_EXCL, name->text, name->n);
	return error == EEXIST ? 0 : error;
}

/* 0 or an errno. */
static int write_piece(int dir, const struct name *name, uint32_t number, uint64_t sum,
	const void *bytes, size_t n)
{
	char path[PATH_BYTES], new[PATH_BYTES];
	int end = path_of(&name->hash, new), error = make_directory(dir, name);

	if (error)
		return error;
	snprintf(new + end, PATH_BYTES - (size_t)end, "/%" PRIu32 ".new", number);
	piece_path(&name->hash, number, sum, path);
	error = write_file(dir, new, O_TRUNC, bytes, n);
	if (!error && renameat(dir, new, dir, path) != 0)
		error = errno;
	if (error)
		unlinkat(dir, new, 0);
	return error;
}

/* Reserves space for a piece, which is being written then. NULL: it is there, or cannot be taken.
 * Locked; unlocked meanwhile. */
static struct piece *reserve(
	struct store_cache *cache, const struct name *name, uint32_t number, uint64_t bytes)
{
	struct entry *e = find(cache, &name->hash);
	struct piece *p;

	if (!cache->ready || is_failing(cache) || (e && e->at[number]))
		return NULL;
	cache->status.misses++;
	if (!make_room(cache, blocks(bytes) + blocks(name->n)) || is_failing(cache))
		return NULL;
	e = find(cache, &name->hash);
	if (!e)
		e = add_entry(cache, name);
	if (!e || e->at[number])
		return NULL;
	p = add_piece(cache, e, number);
	if (!p && e->present == 0)
		end_entry(cache, e);
	return p;
}

void store_cache_put(struct store_cache *cache, const struct url_place *place,
	const struct object *object, uint64_t piece, const void *bytes)
{
	uint64_t n = cache_piece_bytes(object->size, object->piece, piece);
	uint64_t sum = XXH64(bytes, n, 0);
	bool last = false;
	struct name name;
	struct piece *p;

	if (!name_of(place, object, &name))
		return;
	pthread_mutex_lock(&cache->lock);
	p = reserve(cache, &name, (uint32_t)piece, n);
	pthread_mutex_unlock(&cache->lock);
	if (!p) /* nobody else frees a piece that is being written */
		return;
	int error = write_piece(cache->dir, &name, (uint32_t)piece, sum, bytes, n);

	pthread_mutex_lock(&cache->lock);
	p->verified = true;
	if (error)
		last = forget(cache, p);
	else
		whole(cache, p, sum);
	pthread_mutex_unlock(&cache->lock);
	if (last)
		remove_directory(cache, &name.hash);
	if (error)
		failed(cache, error, "cannot write a piece");
}

/* ---- the pieces of earlier daemons ---- */

/* A piece that was found. Those that were read last are the last to be removed. */
struct found {
	struct timespec read;
	struct piece *piece;
};

struct founds {
	struct found *found;
	size_t n, room;
};

static int by_read(const void *a, const void *b)
{
	const struct timespec *x = &((const struct found *)a)->read,
			      *y = &((const struct found *)b)->read;

	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* False: it is not in a state in which a daemon leaves a piece, or out of memory. */
static bool scan_piece(struct store_cache *cache, struct entry *e, const char *file,
	const struct stat *st, struct founds *all)
{
	uint64_t number, sum;
	struct piece *p;
	char *end;

	number = strtoull(file, &end, 10);
	if (end == file || *end != '.' || strlen(end) != 17 || number >= e->pieces || e->at[number])
		return false;
	sum = strtoull(end + 1, &end, 16);
	if (*end || !S_ISREG(st->st_mode) ||
		(uint64_t)st->st_size != cache_piece_bytes(e->size, e->piece, number))
		return false;
	if (all->n == all->room) {
		size_t room = 2 * all->room + 1024;
		struct found *more = reallocarray(all->found, room, sizeof(*more));

		if (!more)
			return false;
		all->found = more;
		all->room = room;
	}
	pthread_mutex_lock(&cache->lock);
	p = add_piece(cache, e, (uint32_t)number);
	pthread_mutex_unlock(&cache->lock);
	if (!p)
		return false;
	p->sum = sum;
	all->found[all->n++] = (struct found){st->st_atim, p};
	return true;
}

/* The object whose name is in a directory. NULL: it has none, or out of memory. */
static struct entry *scan_name(struct store_cache *cache, int dir, const char *hash)
{
	struct name name;
	struct entry *e;
	char path[PATH_BYTES];
	int fd = openat(dir, "name", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd < 0 ? -1 : read(fd, name.text, sizeof(name.text));

	if (fd >= 0)
		close(fd);
	if (n <= 0 || n == NAME_BYTES || name.text[n - 1] != 0)
		return NULL;
	name.n = (size_t)n;
	hash_name(&name);
	path_of(&name.hash, path);
	if (strcmp(path + 3, hash) != 0)
		return NULL;
	pthread_mutex_lock(&cache->lock);
	e = add_entry(cache, &name);
	pthread_mutex_unlock(&cache->lock);
	return e;
}

static DIR *open_directory(int at, const char *path)
{
	int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

	if (fd >= 0 && !dir)
		close(fd);
	return dir;
}

/* Removes everything else from the directory. */
static void scan_object(struct store_cache *cache, int at, const char *hash, struct founds *all)
{
	DIR *dir = open_directory(at, hash);
	struct entry *e = dir ? scan_name(cache, dirfd(dir), hash) : NULL;
	const struct dirent *file;
	struct stat st;

	while (dir && (file = readdir(dir))) {
		if (file->d_name[0] == '.' || (e && strcmp(file->d_name, "name") == 0))
			continue;
		if (!e || fstatat(dirfd(dir), file->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
			!scan_piece(cache, e, file->d_name, &st, all))
			unlinkat(dirfd(dir), file->d_name, 0);
	}
	if (e && e->present == 0) {
		pthread_mutex_lock(&cache->lock);
		end_entry(cache, e);
		pthread_mutex_unlock(&cache->lock);
		unlinkat(dirfd(dir), "name", 0);
	}
	if (dir)
		closedir(dir);
	unlinkat(at, hash, AT_REMOVEDIR); /* if it is empty */
}

static void scan_all(struct store_cache *cache, struct founds *all)
{
	for (unsigned i = 0; i < 256; i++) {
		char sub[3];
		const struct dirent *object;
		DIR *dir;

		snprintf(sub, sizeof(sub), "%02x", i);
		dir = open_directory(cache->dir, sub);
		while (dir && !cache->closing && (object = readdir(dir)))
			if (strlen(object->d_name) == 2 * (size_t)HASH_BYTES)
				scan_object(cache, dirfd(dir), object->d_name, all);
		if (dir)
			closedir(dir);
	}
}

static void *scan(void *argument)
{
	struct store_cache *cache = argument;
	struct founds all = {0};

	prctl(PR_SET_NAME, "tokend-cache");
	scan_all(cache, &all);
	if (all.n > 0)
		qsort(all.found, all.n, sizeof(all.found[0]), by_read);
	pthread_mutex_lock(&cache->lock);
	for (size_t i = 0; i < all.n; i++)
		whole(cache, all.found[i].piece, all.found[i].piece->sum);
	make_room(cache, 0); /* if the size was reduced */
	cache->ready = true;
	pthread_mutex_unlock(&cache->lock);
	free(all.found);
	return NULL;
}

/* ---- opening and closing ---- */

static int start_scan(struct store_cache *cache)
{
	sigset_t every, before;

	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &before);
	int error = pthread_create(&cache->scanner, NULL, scan, cache);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

struct store_cache *store_cache_open(const struct store_cache_options *options, struct fault *fault)
{
	struct store_cache *cache = calloc(1, sizeof(*cache));
	int error;

	if (!cache) {
		fault_memory(fault);
		return NULL;
	}
	cache->dir = cache_dir_open(options->dir, options->size, fault);
	if (cache->dir < 0 || !cache_dir_lock(cache->dir, options->dir, fault)) {
		if (cache->dir >= 0)
			close(cache->dir);
		free(cache);
		return NULL;
	}
	snprintf(cache->status.dir, sizeof(cache->status.dir), "%s", options->dir);
	cache->status.size_bytes = options->size;
	cache->log = options->log;
	cache->log_context = options->log_context;
	pthread_mutex_init(&cache->lock, NULL);
	TAILQ_INIT(&cache->uses);
	error = start_scan(cache);
	if (!error)
		return cache;
	fault_errno(
		fault, error, "cache", "cannot start a thread of the cache: %s", strerror(error));
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
	while (!TAILQ_EMPTY(&cache->uses))
		forget(cache, TAILQ_FIRST(&cache->uses));
	assert(cache->status.objects == 0 && cache->status.used_bytes == 0);
	pthread_mutex_destroy(&cache->lock);
	close(cache->dir);
	free(cache);
}

bool store_cache_ready(struct store_cache *cache)
{
	pthread_mutex_lock(&cache->lock);
	bool ready = cache->ready;

	pthread_mutex_unlock(&cache->lock);
	return ready;
}

bool store_cache_takes(struct store_cache *cache)
{
	pthread_mutex_lock(&cache->lock);
	bool takes = cache->ready && !is_failing(cache);

	pthread_mutex_unlock(&cache->lock);
	return takes;
}

/* ---- by name, and for status ---- */

/* A piece of an object of the chain whose URL begins with @url. NULL: there is none that is whole.
 */
static struct piece *any_piece(const struct entry *e, const char *url)
{
	size_t n = strlen(url);

	for (; e; e = e->next) {
		if (strncmp(e->url, url, n) != 0)
			continue;
		for (uint32_t i = 0; i < e->pieces; i++)
			if (e->at[i] && e->at[i]->whole)
				return e->at[i];
	}
	return NULL;
}

uint64_t store_cache_drop(struct store_cache *cache, const char *url, uint64_t most)
{
	uint64_t dropped = 0;
	struct piece *p;

	pthread_mutex_lock(&cache->lock);
	for (unsigned i = 0; cache->ready && i < CHAINS; i++)
		while (dropped < most && (p = any_piece(cache->chain[i], url))) {
			remove_piece(cache, p);
			dropped++;
		}
	pthread_mutex_unlock(&cache->lock);
	return dropped;
}

void store_cache_list(struct store_cache *cache,
	void (*each)(void *context, const char *url, uint64_t pieces, uint64_t bytes),
	void *context)
{
	pthread_mutex_lock(&cache->lock);
	for (unsigned i = 0; i < CHAINS; i++)
		for (const struct entry *e = cache->chain[i]; e; e = e->next)
			each(context, e->url, e->present, e->bytes);
	pthread_mutex_unlock(&cache->lock);
}

void store_cache_state(struct store_cache *cache, struct store_cache_status *status)
{
	int64_t now = now_ms();

	pthread_mutex_lock(&cache->lock);
	*status = cache->status;
	if (now < cache->failing_until_ms)
		status->failing_s = (unsigned)((cache->failing_until_ms - now + 999) / 1000);
	status->last_ago_s = status->last[0] ? (now - cache->failed_ms) / 1000 : 0;
	pthread_mutex_unlock(&cache->lock);
}
