/* Plain files, the dispatch to sources, and names of files. */
#include "daemon/shard/bytes.h"

#include "daemon/shard/bytes_object.h"
#include "daemon/shard/reread.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NOT_REGULAR PHRASE_NOT_FILE "; a shard must be one"

const char *bytes_shown(const void *from, size_t n, char *to, size_t to_bytes)
{
	const uint8_t *in = from;

	n = n < to_bytes ? n : to_bytes - 1;
	for (size_t i = 0; i < n; i++)
		to[i] = in[i] >= ' ' && in[i] <= '~' ? (char)in[i] : '?';
	to[n] = 0;
	return to;
}

/* ---- plain files ---- */

static bool plain_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	char *byte = to;

	while (n > 0) {
		ssize_t got = pread(b->fd, byte, n, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			int error = errno;

			return fault_errno(
				fault, error, "", "%s at byte %" PRIu64, strerror(error), at);
		}
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

static bool plain_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	struct iovec all = {.iov_base = to, .iov_len = n};

	return preadv2(b->fd, &all, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)n;
}

static void plain_close(struct bytes *b)
{
	free(b);
}

/* For a source that owns its descriptor. */
static void own_close(struct bytes *b)
{
	close(b->fd);
	free(b);
}

static void plain_forget(const struct bytes *b)
{
	reread_forget(b->fd, 0, 0);
}

static const struct bytes_ops plain_ops = {plain_read, plain_close, NULL, plain_try, NULL,
				      plain_forget},
			      own_ops = {
				      plain_read, own_close, NULL, plain_try, NULL, plain_forget};

uint32_t bytes_id(const struct stat *st)
{
	const uint64_t facts[] = {st->st_ino, (uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec,
		(uint64_t)st->st_mtim.tv_nsec};
	uint64_t id = 0;

	for (unsigned i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		id = (id ^ facts[i]) * UINT64_C(0x9e3779b97f4a7c15);
		id ^= id >> 32;
	}
	return id & UINT32_MAX ? (uint32_t)id : 1;
}

static uint64_t ctime_ns(const struct stat *st)
{
	return (uint64_t)st->st_ctim.tv_sec * 1000000000 + (uint64_t)st->st_ctim.tv_nsec;
}

bool bytes_settled(const struct bytes *b, struct fault *fault)
{
	struct stat st;

	if (b->objects) /* the store compares the ETag with each answer */
		return true;
	if (fstat(b->fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	if (bytes_id(&st) == b->id && ctime_ns(&st) == b->version)
		return true;
	return fault_errno(fault, ESTALE, "", "one of its side files " PHRASE_CHANGED);
}

struct bytes *bytes_open_plain(int fd, const char *path, struct fault *fault)
{
	struct bytes *b = calloc(1, sizeof(*b));
	struct stat st;

	if (!b)
		fault_memory(fault);
	else if (fstat(fd, &st) != 0)
		fault_errno(fault, errno, "", "%s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		fault_set(fault, FAULT_DATA, "", NOT_REGULAR);
	else {
		*b = (struct bytes){.ops = &plain_ops,
			.path = path,
			.size = (uint64_t)st.st_size,
			.plain = true,
			.fd = fd,
			.id = bytes_id(&st),
			.version = ctime_ns(&st)};
		return b;
	}
	free(b);
	return NULL;
}

const char *bytes_open_fault(int error)
{
	return error == ENXIO ? NOT_REGULAR : strerror(error);
}

static bool open_side_file(const char *path, struct bytes **b, struct fault *fault)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	/* O_NONBLOCK: open() would wait for the writer of a FIFO. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = errno;
	struct stat st;

	*b = NULL;
	if (fd < 0 && error == ENOENT) {
		/* A dangling link means a lost file, so it is an error. */
		if (lstat(path, &st) != 0)
			return true;
		return fault_set(fault, FAULT_DATA, "",
			"%.200s: is a link to a missing file; restore that file, or remove the "
			"link",
			name);
	}
	if (fd < 0)
		return fault_errno(fault, error, "", "%.200s: %s", name, bytes_open_fault(error));
	*b = bytes_open_plain(fd, path, fault);
	if (!*b) {
		close(fd);
		return fault_prefix(fault, "%.200s: ", name);
	}
	(*b)->ops = &own_ops;
	return true;
}

bool bytes_open_side(
	const struct bytes *shard, const char *path, struct bytes **b, struct fault *fault)
{
	return shard->objects ? bytes_object_open(shard->objects, path, shard->ahead, b, fault)
			      : open_side_file(path, b, fault);
}

/* ---- any source ---- */

void bytes_close(struct bytes *b)
{
	if (b)
		b->ops->close(b);
}

bool bytes_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	if (at > b->size || n > b->size - at) {
		return fault_set(fault, FAULT_DATA, "",
			"bytes %" PRIu64 " to %" PRIu64 " were requested; it has %" PRIu64, at,
			at + n, b->size);
	}
	return n == 0 || b->ops->read(b, at, to, n, fault);
}

bool bytes_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	return b->ops->try && at <= b->size && n <= b->size - at && b->ops->try(b, at, to, n);
}

bool bytes_check(const struct bytes *b, struct fault *fault)
{
	return !b->ops->check || b->ops->check(b, fault);
}

void bytes_forget(const struct bytes *b)
{
	if (b->ops->forget)
		b->ops->forget(b);
}

bool bytes_begin(const struct bytes *b, void *to, size_t n, struct fault *fault)
{
	return (n > 0 && n <= b->size && b->ops->head && b->ops->head(b, to, n)) ||
	       bytes_read(b, 0, to, n, fault);
}

size_t bytes_head(const struct bytes *b, void *to, size_t n)
{
	struct fault fault;

	n = n < b->size ? n : (size_t)b->size;
	if (bytes_begin(b, to, n, &fault))
		return n;
	if (b->unread && b->unread->code == FAULT_NONE)
		*b->unread = fault;
	return 0;
}

/* ---- names ---- */

static bool ends(const char *path, size_t n, const char *ending)
{
	size_t m = strlen(ending);

	return n >= m && memcmp(path + n - m, ending, m) == 0;
}

bool bytes_ends_in(const char *path, const char *ending)
{
	return ends(path, strlen(path), ending);
}

const char *bytes_ending(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);

	if (ends(path, n, ending))
		return path + n - m;
	n -= ends(path, n, ".zst") ? 4 : ends(path, n, ".zstd") ? 5 : 0;
	return ends(path, n, ending) ? path + n - m : NULL;
}

bool bytes_side_path(
	const char *path, const char *ending, const char *other, char *to, size_t to_bytes)
{
	const char *at = bytes_ending(path, ending);

	if (!at)
		return false;
	int n = snprintf(to, to_bytes, "%.*s%s", (int)(at - path), path, other);

	if (n < 0 || (size_t)n >= to_bytes)
		return false;
	const char *slash = strrchr(to, '/');

	return strlen(slash ? slash + 1 : to) <= NAME_MAX;
}
