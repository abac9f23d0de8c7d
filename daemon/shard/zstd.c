/*
 * zstd-compressed files: those with a seek table at their end (zstd's contrib/seekable_format), or
 * of one frame whose header states its size. A read decodes the frames that it touches, each as a
 * whole, into a cache that all sources may share.
 *
 * Files are untrusted. The frames of a seek table must fill the file, and a frame must be able to
 * hold its claimed size before memory is allocated for it. The decoded bytes must have the recorded
 * length and checksum.
 */
#include "daemon/shard/zstd.h"

#include "daemon/shard/format.h"
#include "daemon/shard/frames.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum {
	BLOCK_MOST = 128 * 1024, /* largest decoded size of a block, by zstd's format */
	BLOCK_LEAST = 4,	 /* least size of a full block, in bytes */
	HEADER_MOST = 18,
	SKIPPABLE_BYTES = 8, /* magic and length */
	FOOTER_BYTES = 9,
	AT_ONCE = 128,	     /* entries of a table that are read at a time */
	HEAD_FROM = 1 << 20, /* bytes; of larger frames the first bytes are decoded by themselves */
	HEAD_INPUT = 4096,
	SMALL = 1 << 16, /* bytes; files up to this size are decoded when they are opened, */
	SMALL_CONTENT = 1 << 20, /* if their contents are at most this large */
	OWN_ROOM = 2 << 20,	 /* for the decoder, in a cache of one frame */
	BUDGET = 256 << 20,	 /* the default */
};

static const uint32_t frame_magic = 0xfd2fb528, skippable_magic = 0x184d2a50,
		      table_magic = 0x184d2a5e, seekable_magic = 0x8f92eab1;

/* ---- decoding ---- */

void zstd_decoder_free(struct zstd_decoder *d)
{
	if (d) {
		ZSTD_freeDCtx(d->zstd);
		free(d->input);
	}
	free(d);
}

struct zstd_decoder *zstd_decoder_new(void)
{
	struct zstd_decoder *d = calloc(1, sizeof(*d));

	if (d)
		d->zstd = ZSTD_createDCtx();
	if (d && !d->zstd) {
		free(d);
		d = NULL;
	}
	return d;
}

bool zstd_decoder_room(struct zstd_decoder *d, size_t bytes)
{
	if (d->room >= bytes)
		return true;
	free(d->input);
	d->input = malloc(bytes);
	d->room = d->input ? bytes : 0;
	return d->input;
}

bool zstd_decode(struct zstd_decoder *d, const struct zstd_source *s, uint64_t frame, uint64_t size,
	char **data, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[frame];

	if (!zstd_decoder_room(d, f->length) || (!*data && !(*data = malloc(size + 1))))
		return fault_memory(fault);
	if (!bytes_read(s->file, f->from, d->input, f->length, fault))
		return false;
	if (ZSTD_getDictID_fromFrame(d->input, f->length) != 0)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": was compressed with dictionary %u, which is not "
			"supported; compress it without a dictionary",
			frame, ZSTD_getDictID_fromFrame(d->input, f->length));
	size_t length = ZSTD_findFrameCompressedSize(d->input, f->length);

	if (!ZSTD_isError(length) && length != f->length)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": is %zu bytes long, and %" PRIu32
			" are there: it has several frames, but no seek table that lists them; "
			"decompress it, and use `tokctl pack --format zstd`",
			frame, length, f->length);
	size_t got = ZSTD_decompressDCtx(d->zstd, *data, size, d->input, f->length);

	if (ZSTD_isError(got))
		return fault_set(fault, FAULT_DATA, "", "zstd frame %" PRIu64 " is damaged: %s",
			frame, ZSTD_getErrorName(got));
	if (got != size)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 " decodes to %zu bytes; the seek table says %" PRIu64,
			frame, got, size);
	if (!s->has_checksums)
		return true;
	uint32_t sum = (uint32_t)XXH64(*data, size, 0);

	return sum == f->checksum ||
	       fault_set(fault, FAULT_DATA, "",
		       "zstd frame %" PRIu64 " is damaged: its checksum is %08" PRIx32
		       "; the seek table says %08" PRIx32,
		       frame, sum, f->checksum);
}

/* ---- finding the frames ---- */

static bool refuse_large(const struct zstd_source *s, uint64_t size, struct fault *fault)
{
	return fault_set(fault, FAULT_DATA, "",
		"zstd frame %" PRIu64 " has %" PRIu64 " bytes; the decode budget is %" PRIu64
		", a quarter of `memory`: compress the file in frames of 256 KiB (`tokctl pack "
		"--format zstd`), or raise `memory`",
		s->count, size, s->budget);
}

/* Appends the next frame: [from, from + length) of the file, @size bytes decoded. */
static bool add_frame(struct zstd_source *s, uint64_t from, uint64_t length, uint64_t size,
	uint32_t checksum, struct fault *fault)
{
	struct zstd_frame *last = &s->frame[s->count];

	if (size > s->budget)
		return refuse_large(s, size, fault);
	if (length > s->budget + BLOCK_MOST || length > UINT32_MAX)
		return refuse_large(s, length, fault);
	if (size > length / BLOCK_LEAST * BLOCK_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": decompressed size is %" PRIu64 "; its %" PRIu64
			" compressed bytes hold at most %" PRIu64,
			s->count, size, length, length / BLOCK_LEAST * BLOCK_MOST);
	*last = (struct zstd_frame){from, last->begin, (uint32_t)length, checksum};
	last[1].begin = last->begin + size;
	s->count++;
	if (size > s->bytes.frame_bytes)
		s->bytes.frame_bytes = size;
	return true;
}

static bool make_frames(struct zstd_source *s, uint64_t count, struct fault *fault)
{
	free(s->frame);
	s->frame = calloc(count + 1, sizeof(*s->frame));
	s->bytes.index_bytes = sizeof(*s) + (count + 1) * sizeof(*s->frame);
	return s->frame || fault_memory(fault);
}

static bool has_table(const struct bytes *file)
{
	uint8_t end[4];
	struct fault fault;

	return file->size >= sizeof(end) &&
	       bytes_read(file, file->size - sizeof(end), end, sizeof(end), &fault) &&
	       bytes_u32(end) == seekable_magic;
}

/* Reads the footer: the offset of the table, and its number of entries. */
static bool read_footer(const struct zstd_source *s, uint64_t *at, uint64_t *count,
	uint32_t *entry_bytes, struct fault *fault)
{
	uint8_t footer[FOOTER_BYTES], head[SKIPPABLE_BYTES];
	uint64_t size = s->file->size;

	if (size < SKIPPABLE_BYTES + FOOTER_BYTES)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: the file has %" PRIu64 " bytes; a table alone has %d", size,
			SKIPPABLE_BYTES + FOOTER_BYTES);
	if (!bytes_read(s->file, size - sizeof(footer), footer, sizeof(footer), fault))
		return false;
	if (footer[4] & 0x7c)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: descriptor is 0x%02x; its bits 2 to 6 must be 0", footer[4]);
	*count = bytes_u32(footer);
	*entry_bytes = footer[4] & 0x80 ? 12 : 8;
	uint64_t content = *count * *entry_bytes + FOOTER_BYTES;

	if (content + SKIPPABLE_BYTES > size)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: number of frames is %" PRIu64 ", a table of %" PRIu64
			" bytes; the file has %" PRIu64,
			*count, content + SKIPPABLE_BYTES, size);
	*at = size - content - SKIPPABLE_BYTES;
	if (!bytes_read(s->file, *at, head, sizeof(head), fault))
		return false;
	if (bytes_u32(head) != table_magic || bytes_u32(head + 4) != content)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: number of frames is %" PRIu64 ", but at byte %" PRIu64
			" no table of that length begins (magic %08" PRIx32 ", length %" PRIu32 ")",
			*count, *at, bytes_u32(head), bytes_u32(head + 4));
	return *count <= *at / SKIPPABLE_BYTES ||
	       fault_set(fault, FAULT_DATA, "",
		       "seek table: number of frames is %" PRIu64 "; the %" PRIu64
		       " bytes before it hold at most %" PRIu64,
		       *count, *at, *at / SKIPPABLE_BYTES);
}

/*
 * Frames that are empty by the table are never read, so they must be empty: otherwise tokens would
 * be lost silently.
 */
static bool check_empty(const struct zstd_source *s, struct fault *fault)
{
	struct zstd_decoder *d = NULL;
	char *none = NULL;
	bool fine = true;

	for (uint64_t i = 0; fine && i < s->count; i++) {
		if (s->frame[i + 1].begin > s->frame[i].begin)
			continue;
		if (!d && !(d = zstd_decoder_new()))
			fine = fault_memory(fault);
		fine = fine && zstd_decode(d, s, i, 0, &none, fault);
	}
	free(none);
	zstd_decoder_free(d);
	return fine;
}

static bool read_table(struct zstd_source *s, struct fault *fault)
{
	uint64_t at, count, from = 0;
	uint8_t some[AT_ONCE * 12];
	uint32_t bytes;

	if (!read_footer(s, &at, &count, &bytes, fault) || !make_frames(s, count, fault))
		return false;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t in = i % AT_ONCE, left = count - i, n = left < AT_ONCE ? left : AT_ONCE;
		const uint8_t *entry = some + in * bytes;

		if (in == 0 && !bytes_read(s->file, at + SKIPPABLE_BYTES + i * bytes, some,
				       n * bytes, fault))
			return false;
		uint32_t length = bytes_u32(entry);

		if (length > at - from)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64 " has a compressed size of %" PRIu32
				"; from byte %" PRIu64 " on there are %" PRIu64 " before the table",
				i, length, from, at - from);
		if (!add_frame(s, from, length, bytes_u32(entry + 4),
			    bytes == 12 ? bytes_u32(entry + 8) : 0, fault))
			return false;
		from += length;
	}
	if (from != at)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: its frames make up %" PRIu64 " bytes; there are %" PRIu64
			" before the table",
			from, at);
	s->has_checksums = bytes == 12;
	/* `tokctl` has checked the bytes that the store returns when it wrote the manifest. */
	return (s->file->objects && s->file->objects->inspected) || check_empty(s, fault);
}

/* Without a table, the file must be one frame. */
static bool read_header(struct zstd_source *s, struct fault *fault)
{
	uint8_t head[HEADER_MOST];
	uint64_t n = s->file->size < sizeof(head) ? s->file->size : sizeof(head);

	if (!bytes_read(s->file, 0, head, n, fault) || !make_frames(s, 1, fault))
		return false;
	unsigned long long size = ZSTD_getFrameContentSize(head, n);

	if (n < 4 || bytes_u32(head) != frame_magic || size == ZSTD_CONTENTSIZE_ERROR)
		return fault_set(fault, FAULT_DATA, "",
			"no zstd frame begins at byte 0 of %" PRIu64 " (magic %08" PRIx32
			"; must be %08" PRIx32
			"): it is damaged or truncated, or has no seek table",
			s->file->size, n >= 4 ? bytes_u32(head) : 0, frame_magic);
	if (size == ZSTD_CONTENTSIZE_UNKNOWN)
		return fault_set(fault, FAULT_DATA, "",
			"has no seek table, and its frame does not state its size, as when zstd "
			"reads a pipe; decompress it, and use `tokctl pack --format zstd`");
	return add_frame(s, 0, s->file->size, size, 0, fault);
}

static bool find_frames(struct zstd_source *s, struct fault *fault)
{
	s->count = 0;
	s->bytes.frame_bytes = 0;
	s->has_checksums = false;
	return has_table(s->file) ? read_table(s, fault) : read_header(s, fault);
}

/* Reads once more: a bit may have flipped on the way from the disk. */
static bool find_frames_twice(struct zstd_source *s, struct fault *fault)
{
	struct fault first;

	if (find_frames(s, &first))
		return true;
	reread_forget(s->file->fd, 0, 0);
	if (!find_frames(s, fault))
		return false;
	reread_was_good(s->file->fd, 0, s->file->size, first.text);
	return true;
}

/* ---- the source ---- */

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

/* @fault: NULL, if it must not wait. */
static bool copy(const struct zstd_source *s, uint64_t at, char *to, size_t n, struct fault *fault)
{
	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at, from = at - s->frame[i].begin;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !(fault ? frames_read(s, i, from, to, some, fault)
					: frames_try(s, i, from, to, some)))
			return false;
		to += some;
		at += some;
		n -= some;
	}
	return true;
}

static bool source_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	return copy((const struct zstd_source *)b, at, to, n, NULL);
}

static bool source_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	return copy((const struct zstd_source *)b, at, to, n, fault);
}

static void source_close(struct bytes *b)
{
	struct zstd_source *s = (struct zstd_source *)b;

	frames_free(s->own);
	bytes_close(s->file);
	free(s->frame);
	free(s);
}

/* Decodes only the first blocks of a large frame, without caching them or checking its checksum. */
static bool source_head(const struct bytes *b, void *to, size_t n)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	uint64_t first = frame_at(s, 0), size = s->frame[first + 1].begin;
	const struct zstd_frame *f = &s->frame[first];
	ZSTD_outBuffer out = {to, n, 0};
	uint8_t input[HEAD_INPUT];
	struct fault fault;

	if (size < HEAD_FROM || n > size)
		return false;
	ZSTD_DCtx *zstd = ZSTD_createDCtx();
	bool fine = zstd;

	for (uint64_t at = 0; fine && at < f->length && out.pos < n;) {
		uint64_t left = f->length - at;
		ZSTD_inBuffer in = {input, left < sizeof(input) ? left : sizeof(input), 0};

		fine = bytes_read(s->file, f->from + at, input, in.size, &fault);
		while (fine && in.pos < in.size && out.pos < n) {
			size_t more = ZSTD_decompressStream(zstd, &out, &in);

			fine = !ZSTD_isError(more) && (more > 0 || out.pos == n);
		}
		at += in.size;
	}
	ZSTD_freeDCtx(zstd);
	return fine && out.pos == n;
}

/* Decodes all of a small file, so that its damage is found now and not later. */
static bool decode_small(const struct zstd_source *s, struct fault *fault)
{
	char byte;

	if (s->file->size > SMALL || s->bytes.size > SMALL_CONTENT)
		return true;
	for (uint64_t i = 0; i < s->count; i++)
		if (s->frame[i + 1].begin > s->frame[i].begin &&
			!frames_read(s, i, 0, &byte, 1, fault))
			return false;
	return true;
}

static const struct bytes_ops source_ops = {source_read, source_close, source_try, source_head};

bool zstd_recognise(const struct bytes *file)
{
	uint8_t head[4];

	if (bytes_ending(file->path, ".zst") || bytes_ending(file->path, ".zstd"))
		return true;
	if (bytes_head(file, head, sizeof(head)) < sizeof(head))
		return false;
	return bytes_u32(head) == frame_magic ||
	       ((bytes_u32(head) & ~15u) == skippable_magic && has_table(file));
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
	s->bytes.size = s->frame[s->count].begin;
	s->share = frames;
	if (!frames)
		s->share = s->own = frames_new(s->bytes.frame_bytes + OWN_ROOM);
	s->frames = s->share ? frames_cache(s->share) : NULL;
	if (!s->frames)
		fault_memory(fault);
	else if (decode_small(s, fault))
		return &s->bytes;
fail:
	source_close(&s->bytes);
	return NULL;
}
