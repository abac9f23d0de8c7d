/* Files and objects as sources of bytes, and names of files. */
#include "daemon/shard/bytes.h"

#include "proto/phrases.h"

#define XXH_INLINE_ALL

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

bool bytes_check(
	struct fault *fault, int64_t value, uint64_t least, uint64_t most, const char *what, ...)
{
	char name[LIMIT_TEXT_BYTES];
	va_list args;

	if (value >= 0 && (uint64_t)value >= least && (uint64_t)value <= most)
		return true;
	va_start(args, what);
	vsnprintf(name, sizeof(name), what, args);
	va_end(args);
	if (least == most)
		return fault_data(fault, "%s is %" PRId64 "; must be %" PRIu64, name, value, least);
	return fault_data(fault, "%s is %" PRId64 "; must be %" PRIu64 " to %" PRIu64, name, value,
		least, most);
}

/* ---- files ---- */

static bool file_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	char *byte = to;

	while (n > 0) {
		ssize_t got = pread(b->fd, byte, n, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fault_errno(
				fault, errno, "", "%s at byte %" PRIu64, strerror(errno), at);
		if (got == 0)
			return fault_errno(fault, EIO, "",
				"was truncated: it ends at byte %" PRIu64 ", but had %" PRIu64
				" bytes when it was opened",
				at, b->size);
		byte += got;
		at += (uint64_t)got;
		n -= (size_t)got;
	}
	return true;
}

uint64_t bytes_id(const struct stat *st)
{
	const uint64_t facts[] = {st->st_ino, (uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec,
		(uint64_t)st->st_mtim.tv_nsec};
	uint64_t id = XXH64(facts, sizeof(facts), 0);

	return id ? id : 1;
}

static uint64_t object_id(const struct object *object)
{
	uint64_t hash = object->etag ? XXH64(object->etag, strlen(object->etag), 0) : 0;
	uint64_t id = XXH64(&object->size, sizeof(object->size), hash);

	return id ? id : 1;
}

uint64_t bytes_id_at(const struct objects *objects, const char *path)
{
	struct object object;
	struct stat st;

	if (objects)
		return objects->find(objects->context, path, &object) ? object_id(&object) : 0;
	if (stat(path, &st) == 0)
		return bytes_id(&st);
	return errno != ENOENT && errno != ENOTDIR ? 1 : lstat(path, &st) == 0 ? 2 : 0;
}

bool bytes_settled(const struct bytes *b, struct fault *fault)
{
	struct stat st;

	if (b->objects) /* the store compares the ETag with each answer */
		return true;
	if (fstat(b->fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	return bytes_id(&st) == b->id ||
	       fault_errno(fault, ESTALE, "", "one of its side files " PHRASE_CHANGED);
}

static struct bytes *open_file(int fd, const char *path, struct fault *fault)
{
	bool owns_fd = fd < 0;
	struct bytes *b;
	struct stat st;

	/* O_NONBLOCK: open() would wait for the writer of a FIFO. */
	if (owns_fd)
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) != 0)
		fault_errno(fault, errno, "", "%s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		fault_data(fault, PHRASE_NOT_FILE "; a shard must be one");
	else if (!(b = malloc(sizeof(*b))))
		fault_memory(fault);
	else {
		*b = (struct bytes){.path = path,
			.size = (uint64_t)st.st_size,
			.stored = (uint64_t)st.st_size,
			.plain = true,
			.fd = fd,
			.owns_fd = owns_fd,
			.id = bytes_id(&st),
			.mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 +
				    (uint64_t)st.st_mtim.tv_nsec};
		return b;
	}
	if (owns_fd && fd >= 0)
		close(fd);
	return NULL;
}

/* ---- objects ---- */

/*
 * While a shard is opened, a header, a table or an index is read in many small pieces, and each
 * would be a GET. So the store reads whole blocks, and keeps them.
 */
enum { BLOCKS = 256, BLOCK_MOST = 1 << 20 };

void bytes_opened(const struct bytes *b)
{
	if (b && b->object)
		b->object->block = 0;
}

static struct bytes *open_object(
	const struct objects *objects, const char *path, struct fault *fault)
{
	struct object object;
	struct bytes *b = NULL;

	if (!objects->find(objects->context, path, &object))
		fault_data(fault, "is not among the listed objects");
	else if (!(b = malloc(sizeof(*b) + sizeof(object))))
		fault_memory(fault);
	if (!b)
		return NULL;
	object.block = STORE_BLOCK_BYTES;
	while (object.block < BLOCK_MOST && (uint64_t)object.block * BLOCKS < object.size)
		object.block *= 2;
	*b = (struct bytes){.path = path,
		.size = object.size,
		.stored = object.size,
		.plain = true,
		.fd = -1,
		.id = object_id(&object),
		.objects = objects,
		.object = memcpy(b + 1, &object, sizeof(object))};
	return b;
}

/* ---- any source ---- */

struct bytes *bytes_open(
	int fd, const char *path, const struct objects *objects, struct fault *fault)
{
	return objects ? open_object(objects, path, fault) : open_file(fd, path, fault);
}

bool bytes_open_side(
	const struct bytes *shard, const char *path, struct bytes **b, struct fault *fault)
{
	const char *name = bytes_name(path);

	*b = NULL;
	if (bytes_id_at(shard->objects, path) == 0)
		return true;
	*b = bytes_open(-1, path, shard->objects, fault);
	if (!*b && fault->error == ENOENT) /* a lost file, so it is an error */
		return fault_data(fault,
			"%.200s: is a link to a missing file; restore that file, or remove the "
			"link",
			name);
	return *b || fault_prefix(fault, "%.200s: ", name);
}

void bytes_close(struct bytes *b)
{
	if (b && !b->plain) {
		zstd_close(b);
	} else if (b) {
		if (b->owns_fd)
			close(b->fd);
		free(b);
	}
}

bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	struct iovec all = {.iov_base = to, .iov_len = n};

	if (at > b->size || n > b->size - at)
		return fault &&
		       fault_data(fault,
			       "bytes %" PRIu64 " to %" PRIu64 " were requested; it has %" PRIu64,
			       at, at + n, b->size);
	if (!b->plain)
		return zstd_read(b, at, to, n, fault);
	if (!fault)
		return !b->object && preadv2(b->fd, &all, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)n;
	return b->object ? store_read(b->objects->stores, b->object, at, to, n, fault)
			 : file_read(b, at, to, n, fault);
}

void *bytes_load(const struct bytes *b, uint64_t at, size_t n, struct fault *fault)
{
	char *to = malloc(n + 1);
	bool fine = to ? bytes_read(b, at, to, n, fault) : fault_memory(fault);

	if (fine)
		to[n] = 0;
	else
		free(to);
	return fine ? to : NULL;
}

bool bytes_begin(const struct bytes *b, void *to, size_t n, struct fault *fault)
{
	return (!b->plain && n > 0 && n <= b->size && zstd_head(b, to, n)) ||
	       bytes_read(b, 0, to, n, fault);
}

/* ---- arrays ---- */

bool bytes_next(struct bytes_array *array, uint64_t *item, struct fault *fault)
{
	if (array->begin == array->end) {
		uint64_t most = sizeof(array->chunk) / array->width,
			 n = array->count < most ? array->count : most;

		assert(n > 0);
		if (!bytes_read(array->b, array->at, array->chunk, n * array->width, fault))
			return false;
		array->begin = 0;
		array->end = (uint32_t)n * array->width;
		array->at += array->end;
		array->count -= n;
	}
	const uint8_t *at = array->chunk + array->begin;

	*item = array->width == 4 ? bytes_u32(at) : bytes_u64(at);
	array->begin += array->width;
	return true;
}

/* ---- names ---- */

const char *bytes_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool bytes_ends_in(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);

	return n >= m && strcmp(path + n - m, ending) == 0;
}

const char *bytes_ending(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);

	if (!bytes_ends_in(path, ending))
		n -= bytes_ends_in(path, ".zst") ? 4 : bytes_ends_in(path, ".zstd") ? 5 : 0;
	return n >= m && memcmp(path + n - m, ending, m) == 0 ? path + n - m : NULL;
}

bool bytes_side_path(
	const char *path, const char *ending, const char *other, char *to, size_t to_bytes)
{
	const char *at = bytes_ending(path, ending);

	if (!at)
		return false;
	int n = snprintf(to, to_bytes, "%.*s%s", (int)(at - path), path, other);

	return n >= 0 && (size_t)n < to_bytes && strlen(bytes_name(to)) <= NAME_MAX;
}
