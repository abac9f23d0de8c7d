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
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
	BLOCK_MOST = 128 * 1024, /* largest decoded size of a block, by zstd's format */
	BLOCK_LEAST = 4,	 /* least size of a full block, in bytes */
	HEADER_MOST = 18,
	SKIPPABLE_BYTES = 8, /* magic and length */
	FOOTER_BYTES = 9,
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

static bool decode(const struct zstd_source *s, uint64_t frame, const uint8_t *input, char *to,
	uint64_t size, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[frame];
	size_t length = ZSTD_findFrameCompressedSize(input, f->length);

	if (!ZSTD_isError(length) && length != f->length)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": is %zu bytes long, and %" PRIu32
			" are there: it has several frames, but no seek table that lists them; "
			"decompress it, and use `tokctl pack --format zstd`",
			frame, length, f->length);
	size_t got = ZSTD_decompress(to, size, input, f->length);

	if (ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation)
		return fault_memory(fault);
	if (ZSTD_isError(got))
		return fault_set(fault, FAULT_DATA, "", "zstd frame %" PRIu64 " is damaged: %s",
			frame, ZSTD_getErrorName(got));
	if (got != size)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 " decodes to %zu bytes; the seek table says %" PRIu64,
			frame, got, size);
	uint32_t sum = s->has_checksums ? (uint32_t)XXH64(to, size, 0) : f->checksum;

	return sum == f->checksum ||
	       fault_set(fault, FAULT_DATA, "",
		       "zstd frame %" PRIu64 " is damaged: its checksum is %08" PRIx32
		       "; the seek table says %08" PRIx32,
		       frame, sum, f->checksum);
}

bool zstd_decode(
	const struct zstd_source *s, uint64_t frame, uint64_t size, char *to, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[frame];
	uint8_t *input = malloc((size_t)f->length + 1);
	bool fine = input ? bytes_read(s->file, f->from, input, f->length, fault) &&
				    decode(s, frame, input, to, size, fault)
			  : fault_memory(fault);

	free(input);
	return fine;
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

/* Reads the footer, and finds the table's entries before it. *@end: where frames end. */
static bool read_footer(
	const struct zstd_source *s, struct bytes_array *table, uint64_t *end, struct fault *fault)
{
	uint8_t footer[FOOTER_BYTES], head[SKIPPABLE_BYTES] = {0};
	uint64_t size = s->file->size, most = SKIPPABLE_BYTES + FOOTER_BYTES;

	if (size < most)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: the file has %" PRIu64 " bytes; a table alone has %" PRIu64,
			size, most);
	if (!bytes_read(s->file, size - sizeof(footer), footer, sizeof(footer), fault))
		return false;
	if (footer[4] & 0x7c)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: descriptor is 0x%02x; its bits 2 to 6 must be 0", footer[4]);
	table->b = s->file;
	table->count = bytes_u32(footer);
	table->width = footer[4] & 0x80 ? 12 : 8;
	uint64_t content = table->count * table->width + FOOTER_BYTES;
	bool fits = content + SKIPPABLE_BYTES <= size;

	*end = fits ? size - content - SKIPPABLE_BYTES : 0;
	table->at = *end + SKIPPABLE_BYTES;
	if (fits && !bytes_read(s->file, *end, head, sizeof(head), fault))
		return false;
	return (bytes_u32(head) == table_magic && bytes_u32(head + 4) == content &&
		       table->count <= *end / SKIPPABLE_BYTES) ||
	       fault_set(fault, FAULT_DATA, "",
		       "seek table: number of frames is %" PRIu64
		       ", but a table of that length, after that many frames, is not at the end of "
		       "the file's %" PRIu64 " bytes",
		       table->count, size);
}

/*
 * Frames that are empty by the table are never read, so they must be empty: otherwise tokens would
 * be lost silently. `tokctl` has checked objects when it wrote the manifest.
 */
static bool check_empty(const struct zstd_source *s, uint64_t frame, struct fault *fault)
{
	char none;

	return s->frame[frame + 1].begin > s->frame[frame].begin ||
	       (s->file->objects && s->file->objects->inspected) ||
	       zstd_decode(s, frame, 0, &none, fault);
}

static bool read_table(struct zstd_source *s, struct fault *fault)
{
	struct bytes_array table;
	uint64_t from = 0, end;

	if (!read_footer(s, &table, &end, fault) || !make_frames(s, table.count, fault))
		return false;
	s->has_checksums = table.width == 12;
	for (uint64_t i = 0; i < table.count; i++) {
		const uint8_t *entry = bytes_item(&table, i, fault);

		if (!entry)
			return false;
		uint32_t length = bytes_u32(entry);

		if (length > end - from)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64 " has a compressed size of %" PRIu32
				"; from byte %" PRIu64 " on there are %" PRIu64 " before the table",
				i, length, from, end - from);
		if (!add_frame(s, from, length, bytes_u32(entry + 4),
			    s->has_checksums ? bytes_u32(entry + 8) : 0, fault) ||
			!check_empty(s, i, fault))
			return false;
		from += length;
	}
	return from == end || fault_set(fault, FAULT_DATA, "",
				      "seek table: its frames make up %" PRIu64
				      " bytes; there are %" PRIu64 " before the table",
				      from, end);
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

/* As bytes_read(). @fault: NULL, if it must not wait. */
static bool source_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	const struct zstd_source *s = (const struct zstd_source *)b;
	char *next = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at, from = at - s->frame[i].begin;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !frames_read(s, i, from, next, some, fault))
			return false;
		next += some;
		at += some;
		n -= some;
	}
	return true;
}

static bool source_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	return source_read(b, at, to, n, NULL);
}

static void source_close(struct bytes *b)
{
	struct zstd_source *s = (struct zstd_source *)b;

	if (s->own)
		frames_free(s->frames);
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

	for (uint64_t at = 0; fine && out.pos < n; at += sizeof(input)) {
		uint64_t left = at < f->length ? f->length - at : 0;
		ZSTD_inBuffer in = {input, left < sizeof(input) ? left : sizeof(input), 0};

		fine = left > 0 && bytes_read(s->file, f->from + at, input, in.size, &fault);
		while (fine && in.pos < in.size && out.pos < n)
			fine = !ZSTD_isError(ZSTD_decompressStream(zstd, &out, &in));
	}
	ZSTD_freeDCtx(zstd);
	return fine;
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
	struct fault first = {.code = FAULT_NONE};
	bool fine = find_frames(s, &first);

	if (!fine) { /* once more: a bit may have flipped on the way from the disk */
		reread_forget(file->fd, 0, 0);
		fine = find_frames(s, fault);
		if (fine)
			reread_was_good(file->fd, 0, file->size, first.text);
	}
	if (!fine) {
		const char *kind = fault->code == FAULT_DATA ? foreign_kind(file) : NULL;

		if (kind && strncmp(kind, "zstd", 4) != 0)
			foreign_refuse(kind, fault);
		goto fail;
	}
	s->bytes.frames = s->count;
	s->bytes.size = s->frame[s->count].begin;
	s->own = !frames;
	s->frames = frames ? frames : frames_new(s->bytes.frame_bytes + OWN_ROOM);
	if (!s->frames)
		fault_memory(fault);
	else if (decode_small(s, fault))
		return &s->bytes;
fail:
	source_close(&s->bytes);
	return NULL;
}
