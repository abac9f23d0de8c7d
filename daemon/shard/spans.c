/*
 * Each span is stored as 2 · length + (1 for a gap), in seven bits a byte, low bits first. An
 * anchor for every STRIDE-th span tells a search where to start.
 */
#include "daemon/shard/spans.h"

#include <assert.h>
#include <stdlib.h>

enum { STRIDE = 64, LENGTH_MOST = 10 /* bytes */ };

/* Where a span begins: its first token, and the offset of its encoded length. */
struct spans_anchor {
	uint64_t token, byte;
};

static bool resize(struct spans *s, uint64_t bytes, uint64_t anchors)
{
	uint8_t *lengths = realloc(s->lengths, bytes);

	s->lengths = lengths ? lengths : s->lengths;
	struct spans_anchor *grown = reallocarray(s->anchors, anchors, sizeof(*grown));

	s->anchors = grown ? grown : s->anchors;
	if (!lengths || !grown)
		return false;
	s->bytes_room = bytes;
	s->anchors_room = anchors;
	return true;
}

bool spans_add(struct spans *s, uint64_t end, bool gap)
{
	assert(end >= s->end);
	uint64_t left = (end - s->end) << 1 | gap, anchor = s->count / STRIDE;

	if (end == s->end)
		return true;
	if ((s->bytes_room - s->bytes < LENGTH_MOST || anchor >= s->anchors_room) &&
		!resize(s, s->bytes_room + s->bytes_room / 2 + 64,
			s->anchors_room + s->anchors_room / 2 + 1))
		return false;
	if (s->count++ % STRIDE == 0)
		s->anchors[anchor] = (struct spans_anchor){s->end, s->bytes};
	for (; left >= 0x80; left >>= 7)
		s->lengths[s->bytes++] = (uint8_t)(left | 0x80);
	s->lengths[s->bytes++] = (uint8_t)left;
	s->end = end;
	return true;
}

void spans_trim(struct spans *s)
{
	if (s->count > 0)
		(void)resize(s, s->bytes, (s->count - 1) / STRIDE + 1);
}

void spans_free(struct spans *s)
{
	free(s->lengths);
	free(s->anchors);
}

uint64_t spans_bytes(const struct spans *s)
{
	return s->bytes_room + s->anchors_room * sizeof(*s->anchors);
}

void span_step(struct span *span)
{
	uint64_t length = 0;
	unsigned shift = 0;

	for (; *span->next & 0x80; shift += 7)
		length |= (uint64_t)(*span->next++ & 0x7f) << shift;
	length |= (uint64_t)*span->next++ << shift;
	span->end += length >> 1;
	span->gap = length & 1;
}

struct span spans_find(const struct spans *s, uint64_t token)
{
	uint64_t lo = 0, hi = (s->count - 1) / STRIDE + 1;

	assert(token < s->end);
	while (hi - lo > 1) { /* the last anchor at or before @token */
		uint64_t mid = lo + (hi - lo) / 2;

		if (s->anchors[mid].token > token)
			hi = mid;
		else
			lo = mid;
	}
	struct span span = {.end = s->anchors[lo].token, .next = s->lengths + s->anchors[lo].byte};

	do
		span_step(&span);
	while (span.end <= token);
	return span;
}
