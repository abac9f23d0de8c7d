#include "daemon/shard/zstd_frame.h"

#include <errno.h>
#include <inttypes.h>
#include <zstd.h>

enum {
	EMPTY_MOST = 1 << 16, /* consecutive empty blocks: zeros in a file look like them */
};

bool zstd_parse_header(const uint8_t *p, size_t n, struct zstd_header *h)
{
	static const uint8_t dictionary_bytes[] = {0, 1, 2, 4}, content_bytes[] = {0, 2, 4, 8};

	*h = (struct zstd_header){0};
	if (n >= ZSTD_SKIPPABLE_BYTES && (bytes_u32(p) & ~15u) == zstd_skippable_magic) {
		h->skippable = true;
		h->bytes = ZSTD_SKIPPABLE_BYTES + (uint64_t)bytes_u32(p + 4);
		return true;
	}
	if (n < 5 || bytes_u32(p) != zstd_frame_magic || p[4] & 8)
		return false;
	bool single = p[4] & 32;
	unsigned at = 5u + !single + dictionary_bytes[p[4] & 3];
	unsigned content = p[4] >> 6 ? content_bytes[p[4] >> 6] : single;

	h->bytes = at + content;
	if (n < h->bytes)
		return false;
	uint64_t window = 0;

	if (!single) {
		uint64_t base = (uint64_t)1 << (10 + (p[5] >> 3));

		window = base + base / 8 * (p[5] & 7);
	}
	h->has_content = content > 0;
	h->content = content == 1   ? p[at]
		     : content == 2 ? bytes_u16(p + at) + 256u
		     : content == 4 ? bytes_u32(p + at)
		     : content == 8 ? bytes_u64(p + at)
				    : 0;
	if (single)
		window = h->content;
	h->block_most = window < ZSTD_BLOCK_MOST ? window : ZSTD_BLOCK_MOST;
	h->has_checksum = p[4] & 4;
	return true;
}

/* Returns the next *@n bytes, or fewer at the end. NULL: w->fault. */
static const uint8_t *peek(struct zstd_walk *w, size_t *n)
{
	if (*n > w->end - w->at)
		*n = (size_t)(w->end - w->at);
	if (w->at < w->peek_at || w->at + *n > w->peek_at + w->peeked) {
		w->peek_at = w->at;
		w->peeked = w->end - w->at < sizeof(w->peek) ? (size_t)(w->end - w->at)
							     : sizeof(w->peek);
		if (!bytes_read(w->file, w->at, w->peek, w->peeked, w->fault)) {
			w->peeked = 0;
			return NULL;
		}
	}
	return w->peek + (w->at - w->peek_at);
}

static bool damaged(struct zstd_walk *w, uint64_t frame, const char *what)
{
	return fault_set(w->fault, FAULT_DATA, "",
		"zstd frame %" PRIu64 ": %s at byte %" PRIu64 " of %" PRIu64, frame, what, w->at,
		w->end);
}

/* Walks over a frame's blocks. *@most: the largest size that they can decode to. */
static bool walk_blocks(struct zstd_walk *w, uint64_t frame, struct zstd_header *h, uint64_t *most)
{
	uint32_t empty = 0;
	bool last = false;

	*most = 0;
	while (!last) {
		size_t n = 3;
		const uint8_t *p = peek(w, &n);

		if (!p)
			return false;
		if (n < 3)
			return damaged(w, frame, "it is truncated");
		uint32_t block = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
		uint32_t type = block >> 1 & 3, size = block >> 3;

		last = block & 1;
		if (type == 3 || size > h->block_most)
			return damaged(w, frame,
				type == 3 ? "a block of reserved type"
					  : "a block that is too large");
		*most += type == 2 ? h->block_most : size;
		h->least += type == 2 ? 0 : size;
		empty = size > 0 ? 0 : empty + 1;
		if (empty > EMPTY_MOST)
			return damaged(w, frame, "too many empty blocks in a row");
		n = 3 + (type == 1 ? 1 : size) + (last && h->has_checksum ? 4 : 0);
		if (n > w->end - w->at)
			return damaged(w, frame, "it is truncated: a block extends past the end");
		w->at += n;
	}
	return true;
}

/* Reports the bytes at byte @at of @end, where a frame should begin. */
static bool no_frame(
	const uint8_t *p, size_t n, uint64_t frame, uint64_t at, uint64_t end, struct fault *fault)
{
	if (n >= 5 && bytes_u32(p) == zstd_frame_magic && p[4] & 8)
		return fault_set(fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": its descriptor at byte %" PRIu64 " of %" PRIu64
			" is 0x%02x; bit 3 must be 0",
			frame, at + 4, end, p[4]);
	return fault_set(fault, FAULT_DATA, "",
		"zstd frame %" PRIu64 ": no zstd frame begins at byte %" PRIu64 " of %" PRIu64
		" (magic %08" PRIx32 "; must be %08" PRIx32 "): it is damaged or truncated",
		frame, at, end, n >= 4 ? bytes_u32(p) : 0, zstd_frame_magic);
}

bool zstd_needs_dictionary(const uint8_t *p, size_t n, uint64_t frame, struct fault *fault)
{
	unsigned dictionary = ZSTD_getDictID_fromFrame(p, n);

	if (dictionary == 0)
		return false;
	fault_set(fault, FAULT_DATA, "",
		"zstd frame %" PRIu64 ": was compressed with dictionary %u, which is not "
		"supported; compress it without a dictionary",
		frame, dictionary);
	return true;
}

bool zstd_walk_frame(struct zstd_walk *w, uint64_t frame, struct zstd_header *h, uint64_t *most)
{
	size_t n = ZSTD_HEADER_MOST;
	const uint8_t *p = peek(w, &n);

	if (!p)
		return false;
	if (!zstd_parse_header(p, n, h)) {
		return no_frame(p, n, frame, w->at, w->end, w->fault);
	}
	if (zstd_needs_dictionary(p, n, frame, w->fault)) {
		return false;
	}
	if (h->bytes > w->end - w->at)
		return damaged(w, frame, "it is truncated: it extends past the end");
	w->at += h->bytes;
	*most = 0;
	if (h->skippable)
		return true;
	if (!walk_blocks(w, frame, h, most))
		return false;
	if (h->has_content && h->content > *most) {
		return fault_set(w->fault, FAULT_DATA, "",
			"zstd frame %" PRIu64 ": content size is %" PRIu64
			"; its blocks hold at most %" PRIu64,
			frame, h->content, *most);
	}
	return true;
}
