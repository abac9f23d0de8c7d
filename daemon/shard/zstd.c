/*
 * zstd-compressed files. A read decodes the frames that it touches, each as a whole, into a cache
 * that all sources may share.
 *
 * Files are untrusted. The frames of a seek table must fill the file. A frame's blocks must be able
 * to hold its claimed size before memory is allocated for it. The decoded bytes must have the
 * recorded length and checksum.
 */
#include "daemon/shard/zstd.h"

#include "daemon/shard/foreign.h"

#include "daemon/shard/reread.h"
#include "daemon/shard/zstd_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	HEAD_FROM = 1 << 20, /* bytes; larger frames are not decoded as a whole to recognise or
				describe a file */
	SMALL = 1 << 16,     /* bytes; files up to this size are decoded when they are described, */
	SMALL_CONTENT = 1 << 20, /* if their contents are at most this large */
	OWN_ROOM = 2 << 20,	 /* for the decoder, in a cache of one frame */
	BUDGET = 256 << 20,	 /* the default */
};

/* The frame that contains byte @at of the contents; never an empty one. */
static uint64_t frame_at(const struct zstd_source *s, uint64_t at)
{
	uint64_t lo = 0, hi = s->count;

	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (s->frame[mid].begin <= at)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static bool source_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	char *out = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !frames_try(s, i, at - s->frame[i].begin, out, some))
			return false;
		out += some;
		at += some;
		n -= some;
	}
	return true;
}

static bool source_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	char *out = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !frames_read(s, i, at - s->frame[i].begin, out, some, fault))
			return false;
		out += some;
		at += some;
		n -= some;
	}
	return true;
}

static void source_close(struct bytes *b)
{
	struct zstd_source *s = (struct zstd_source *)b;

	frames_free(s->own);
	bytes_close(s->file);
	free(s->frame);
	free(s);
}

/* Drops the page cache and the decoded frames that are not in use. */
static void source_forget(const struct bytes *b)
{
	const struct zstd_source *s = (const struct zstd_source *)b;

	frames_drop(s);
	bytes_forget(s->file);
}

/* Decodes only the first blocks of a large frame, without caching them or checking its checksum. */
static bool source_head(const struct bytes *b, void *to, size_t n)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	uint64_t first = frame_at(s, 0), size = s->frame[first + 1].begin;
	const struct zstd_frame *f = &s->frame[first];
	ZSTD_outBuffer out = {to, n, 0};
	uint8_t input[ZSTD_PEEK_BYTES];
	struct fault fault;

	if (size < HEAD_FROM || n > size)
		return false;
	ZSTD_DCtx *zstd = ZSTD_createDCtx();
	bool fine = zstd;

	for (uint64_t at = 0; fine && at < f->length && out.pos < n;) {
		ZSTD_inBuffer in = {
			input, f->length - at < sizeof(input) ? f->length - at : sizeof(input), 0};

		fine = bytes_read(s->file, f->from + at, input, in.size, &fault);
		while (fine && in.pos < in.size && out.pos < n) {
			size_t left = ZSTD_decompressStream(zstd, &out, &in);

			fine = !ZSTD_isError(left) && (left > 0 || out.pos == n);
		}
		at += in.size;
	}
	ZSTD_freeDCtx(zstd);
	return fine && out.pos == n;
}

/*
 * Decodes all of a small file, except for large frames, so that its damage is found now and not
 * later.
 */
static bool source_check(const struct bytes *b, struct fault *fault)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	char byte;

	if (s->file->size > SMALL || b->size > SMALL_CONTENT)
		return true;
	for (uint64_t i = 0; i < s->count; i++)
		if (s->frame[i + 1].begin > s->frame[i].begin &&
			s->frame[i + 1].begin - s->frame[i].begin < HEAD_FROM &&
			!frames_read(s, i, 0, &byte, 1, fault))
			return false;
	return true;
}

static const struct bytes_ops source_ops = {
	source_read, source_close, source_head, source_try, source_check, source_forget};

bool zstd_recognise(const struct bytes *file)
{
	uint8_t head[4];

	if (bytes_ending(file->path, ".zst") || bytes_ending(file->path, ".zstd"))
		return true;
	if (bytes_head(file, head, sizeof(head)) < sizeof(head))
		return false;
	return bytes_u32(head) == zstd_frame_magic ||
	       ((bytes_u32(head) & ~15u) == zstd_skippable_magic && zstd_has_table(file));
}

static bool identify(struct zstd_source *s, struct fault *fault)
{
	struct stat st;

	if (s->file->objects) {
		s->identity =
			(struct zstd_identity){.inode = s->file->version, .bytes = s->file->size};
		return true;
	}
	if (fstat(s->file->fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	s->identity = (struct zstd_identity){st.st_dev, st.st_ino,
		(uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec,
		(uint64_t)st.st_size,
		/*
		 * ctime: a frame that was decoded while the file was overwritten must not be
		 * reused, even if mtime is the same.
		 */
		(uint64_t)st.st_ctim.tv_sec * 1000000000 + (uint64_t)st.st_ctim.tv_nsec};
	return true;
}

/*
 * Like decode_again(), for the table and the headers: a bit may have flipped on the way from the
 * disk.
 */
static bool find_frames_twice(struct zstd_source *s, struct fault *fault)
{
	struct fault first;

	if (zstd_find_frames(s, &first))
		return true;
	bytes_forget(s->file);
	if (!zstd_find_frames(s, fault))
		return false;
	reread_was_good(s->file->fd, 0, s->file->size, first.text);
	return true;
}

struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault)
{
	struct zstd_source *s = calloc(1, sizeof(*s));

	if (!s) {
		fault_memory(fault);
		bytes_close(file);
		return NULL;
	}
	s->file = file;
	s->budget = budget_bytes ? budget_bytes : BUDGET;
	s->bytes = (struct bytes){.ops = &source_ops,
		.path = file->path,
		.fd = file->fd,
		.objects = file->objects,
		.ahead = file->ahead};
	if (!identify(s, fault))
		goto fail;
	if (!find_frames_twice(s, fault)) {
		const char *kind = fault->code == FAULT_DATA ? foreign_kind(file) : NULL;

		if (kind && strncmp(kind, "zstd", 4) != 0)
			foreign_refuse(kind, fault);
		goto fail;
	}
	s->bytes.frames = s->count;
	s->bytes.index_bytes = sizeof(*s) + (s->room + 1) * sizeof(*s->frame);
	s->bytes.size = s->count ? s->frame[s->count].begin : 0;
	s->share = frames;
	if (!frames)
		s->share = s->own = frames_new(s->bytes.frame_bytes + OWN_ROOM);
	s->frames = s->share ? frames_cache(s->share) : NULL;
	if (!s->frames) {
		fault_memory(fault);
		goto fail;
	}
	return &s->bytes;
fail:
	source_close(&s->bytes);
	return NULL;
}
