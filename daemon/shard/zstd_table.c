#include "daemon/shard/zstd_table.h"

#include "daemon/shard/objects.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
	BLOCK_LEAST = 4, /* least size of a full block, in bytes */
	SAMPLED = 16,	 /* frames whose headers are compared with the seek table on opening */
	FOOTER_BYTES = 9,
};

static const uint32_t table_magic = 0x184d2a5e, seekable_magic = 0x8f92eab1;

static bool refuse_large(
	const struct zstd_source *s, uint64_t frame, uint64_t size, struct fault *fault)
{
	return fault_set(fault, FAULT_DATA, "",
		"zstd frame %" PRIu64 " decodes to %s%" PRIu64
		" bytes; the decode budget is %" PRIu64
		", a quarter of `memory`: compress the file in frames of 256 KiB (`tokctl pack "
		"--format zstd`), or raise `memory`",
		frame, size == UINT64_MAX ? "more than " : "",
		size == UINT64_MAX ? s->budget : size, s->budget);
}

/* Appends the next frame: [from, from + length) of the file, @size bytes decoded. */
static bool add_frame(struct zstd_source *s, uint64_t from, uint64_t length, uint64_t size,
	uint32_t checksum, struct fault *fault)
{
	struct zstd_frame *last = &s->frame[s->count];

	if (size > length / BLOCK_LEAST * ZSTD_BLOCK_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": decompressed size is %" PRIu64 "; its %" PRIu64
			" compressed bytes hold at most %" PRIu64,
			s->count, size, length, length / BLOCK_LEAST * ZSTD_BLOCK_MOST);
	if (size > s->budget)
		return refuse_large(s, s->count, size, fault);
	if (size > 0 && (length > UINT32_MAX || length > s->budget + ZSTD_BLOCK_MOST))
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": compressed size is %" PRIu64
			"; the decode budget is %" PRIu64,
			s->count, length, s->budget);
	last->from = from;
	last->length = (uint32_t)length;
	last->checksum = checksum;
	last->kept = 0;
	last[1].begin = last->begin + size;
	s->count++;
	if (size > s->bytes.frame_bytes)
		s->bytes.frame_bytes = size;
	return true;
}

static bool make_frames(struct zstd_source *s, uint64_t room, struct fault *fault)
{
	struct zstd_frame *frame = realloc(s->frame, (room + 1) * sizeof(*frame));

	if (!frame)
		return fault_memory(fault);
	if (!s->frame)
		frame[0].begin = 0;
	s->frame = frame;
	s->room = room;
	return true;
}

/* A seek table: its offset, number of entries, and their size. */
struct table {
	uint64_t at, count;
	uint32_t entry_bytes;
};

static bool read_footer(const struct zstd_source *s, struct table *t, struct fault *fault)
{
	uint8_t footer[FOOTER_BYTES], head[ZSTD_SKIPPABLE_BYTES];
	uint64_t size = s->file->size;

	if (size < ZSTD_SKIPPABLE_BYTES + FOOTER_BYTES)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: the file has %" PRIu64 " bytes; a table alone has %d", size,
			ZSTD_SKIPPABLE_BYTES + FOOTER_BYTES);
	if (!bytes_read(s->file, size - sizeof(footer), footer, sizeof(footer), fault))
		return false;
	if (footer[4] & 0x7c)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: descriptor is 0x%02x; its bits 2 to 6 must be 0", footer[4]);
	t->count = bytes_u32(footer);
	t->entry_bytes = footer[4] & 0x80 ? 12 : 8;
	uint64_t content = t->count * t->entry_bytes + FOOTER_BYTES;

	if (content + ZSTD_SKIPPABLE_BYTES > size)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: number of frames is %" PRIu64 ", a table of %" PRIu64
			" bytes; the file has %" PRIu64,
			t->count, content + ZSTD_SKIPPABLE_BYTES, size);
	t->at = size - content - ZSTD_SKIPPABLE_BYTES;
	if (!bytes_read(s->file, t->at, head, sizeof(head), fault))
		return false;
	if (bytes_u32(head) != table_magic || bytes_u32(head + 4) != content)
		return fault_set(fault, FAULT_DATA, "",
			"seek table: number of frames is %" PRIu64 ", but at byte %" PRIu64
			" no table of that length begins (magic %08" PRIx32 ", length %" PRIu32 ")",
			t->count, t->at, bytes_u32(head), bytes_u32(head + 4));
	return t->count <= t->at / ZSTD_SKIPPABLE_BYTES ||
	       fault_set(fault, FAULT_DATA, "",
		       "seek table: number of frames is %" PRIu64 "; the %" PRIu64
		       " bytes before it hold at most %" PRIu64,
		       t->count, t->at, t->at / ZSTD_SKIPPABLE_BYTES);
}

static bool add_entries(struct zstd_source *s, const struct table *t, struct fault *fault)
{
	uint8_t some[128 * 12];
	uint64_t from = 0;

	for (uint64_t i = 0; i < t->count; i++) {
		uint64_t in = i % 128, left = t->count - i < 128 ? t->count - i : 128;

		if (in == 0 &&
			!bytes_read(s->file, t->at + ZSTD_SKIPPABLE_BYTES + i * t->entry_bytes,
				some, left * t->entry_bytes, fault))
			return false;
		const uint8_t *entry = some + in * t->entry_bytes;
		uint32_t length = bytes_u32(entry);

		if (length > t->at - from)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64 " has a compressed size of %" PRIu32
				"; from byte %" PRIu64 " on there are %" PRIu64 " before the table",
				i, length, from, t->at - from);
		if (!add_frame(s, from, length, bytes_u32(entry + 4),
			    t->entry_bytes == 12 ? bytes_u32(entry + 8) : 0, fault))
			return false;
		from += length;
	}
	return from == t->at || fault_set(fault, FAULT_DATA, "",
					"seek table: its frames make up %" PRIu64
					" bytes; there are %" PRIu64 " before the table",
					from, t->at);
}

/* Compares the headers of a sample of frames with the table. */
static bool check_headers(const struct zstd_source *s, struct fault *fault)
{
	uint64_t step = s->count / SAMPLED + 1;

	for (uint64_t i = 0; i < s->count; i += step) {
		const struct zstd_frame *f = &s->frame[i];
		uint64_t size = f[1].begin - f->begin;
		uint8_t head[ZSTD_HEADER_MOST];
		size_t n = f->length < sizeof(head) ? f->length : sizeof(head);
		struct zstd_header h;

		if (size == 0)
			continue;
		if (!bytes_read(s->file, f->from, head, n, fault))
			return false;
		if (!zstd_parse_header(head, n, &h) || h.skippable)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64 " is at byte %" PRIu64
				", where no zstd frame begins (magic %08" PRIx32
				"; must be %08" PRIx32 ")",
				i, f->from, n >= 4 ? bytes_u32(head) : 0, zstd_frame_magic);
		if (zstd_needs_dictionary(head, n, i, fault))
			return false;
		if (h.has_content && h.content != size)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64 " has a decompressed size of %" PRIu64
				"; the frame itself says %" PRIu64,
				i, size, h.content);
	}
	return true;
}

/*
 * Frames that are empty by the table are never read, so they must be empty: otherwise tokens would
 * be lost silently.
 */
static bool check_empty(const struct zstd_source *s, struct fault *fault)
{
	struct zstd_walk w = {.file = s->file, .fault = fault};
	struct zstd_header h;
	uint64_t most;

	for (uint64_t i = 0; i < s->count; i++) {
		const struct zstd_frame *f = &s->frame[i];

		if (f[1].begin > f->begin)
			continue;
		w.at = f->from;
		w.end = f->from + f->length;
		if (!zstd_walk_frame(&w, i, &h, &most))
			return false;
		if (most > 0 || w.at < w.end)
			return fault_set(fault, FAULT_DATA, "",
				"seek table: frame %" PRIu64
				" has a decompressed size of 0; its %" PRIu32
				" compressed bytes hold up to %" PRIu64,
				i, f->length, most);
	}
	return true;
}

static bool read_table(struct zstd_source *s, struct fault *fault)
{
	struct table t;

	if (!read_footer(s, &t, fault) || !make_frames(s, t.count, fault) ||
		!add_entries(s, &t, fault))
		return false;
	s->has_checksums = t.entry_bytes == 12;
	/* `tokctl inspect` has checked the bytes that the store returns. */
	if (s->file->objects && s->file->objects->inspected)
		return true;
	return check_headers(s, fault) && check_empty(s, fault);
}

/* Finds the decoded size of a frame that does not state it, by decoding it. */
static bool count_content(struct zstd_source *s, const struct zstd_walk *w, uint64_t from,
	uint64_t most, uint64_t *size, struct fault *fault)
{
	struct zstd_decoder *d = zstd_decoder_new();
	struct zstd_header h;

	uint64_t length = w->at - from, room = most < s->budget ? most : s->budget;
	char *data = malloc(room);

	s->frame[s->count].from = from;
	s->frame[s->count].length = (uint32_t)length;
	bool fine = d && data ? length <= UINT32_MAX && length <= s->budget + ZSTD_BLOCK_MOST
			      : fault_memory(fault);

	if (d && data && !fine)
		refuse_large(s, s->count, UINT64_MAX, fault);
	fine = fine && zstd_load_frame(d, s, s->count, &h, &most, fault);
	if (fine) {
		*size = ZSTD_decompressDCtx(d->zstd, data, room, d->input, length);
		if (ZSTD_getErrorCode(*size) == ZSTD_error_dstSize_tooSmall && most > room)
			fine = refuse_large(s, s->count, UINT64_MAX, fault);
		else if (ZSTD_isError(*size))
			fine = fault_set(fault, FAULT_DATA, "",
				"zstd frame %" PRIu64 " is damaged: %s (bytes %" PRIu64
				" to %" PRIu64 ")",
				s->count, ZSTD_getErrorName(*size), from, from + length);
	}
	free(data);
	zstd_decoder_free(d);
	return fine;
}

/* Without a table: walks over all frames. */
static bool walk_file(struct zstd_source *s, struct fault *fault)
{
	struct zstd_walk w = {.file = s->file, .end = s->file->size, .fault = fault};

	if (w.end == 0)
		return fault_set(fault, FAULT_DATA, "",
			"its size is 0 bytes; a zstd file has at least one frame");
	while (w.at < w.end) {
		uint64_t from = w.at, most = 0, size;
		struct zstd_header h;

		if (s->count >= s->room && !make_frames(s, s->room ? 2 * s->room : 4, fault))
			return false;
		if (!zstd_walk_frame(&w, s->count, &h, &most))
			return false;
		size = h.content;
		if (h.skippable || (!h.has_content && most == 0))
			continue;
		if (!h.has_content && h.least > s->budget)
			return refuse_large(s, s->count, UINT64_MAX, fault);
		if (!h.has_content && h.least == most)
			size = most;
		else if (!h.has_content && !count_content(s, &w, from, most, &size, fault))
			return false;
		if (!add_frame(s, from, w.at - from, size, 0, fault))
			return false;
	}
	return true;
}

bool zstd_has_table(const struct bytes *file)
{
	uint8_t end[4];
	struct fault fault;

	return file->size >= sizeof(end) &&
	       bytes_read(file, file->size - sizeof(end), end, sizeof(end), &fault) &&
	       bytes_u32(end) == seekable_magic;
}

bool zstd_find_frames(struct zstd_source *s, struct fault *fault)
{
	s->count = 0;
	s->bytes.frame_bytes = 0;
	s->has_checksums = false;
	return zstd_has_table(s->file) ? read_table(s, fault) : walk_file(s, fault);
}
