/*
 * Of each span there is its length, twice, and one more for a gap, in seven bits a byte, the low
 * ones first; and a mark for every so-manieth span, to begin at.
 */
#include "daemon/shard/spans.h"

#include <assert.h>
#include <stdlib.h>

enum { STRIDE = 64, LENGTH_MOST = 10 /* bytes */ };

/* Where a span begins: its first token, and the byte of its length. */
struct spans_mark {
	uint64_t token, byte;
};

static bool resize(struct spans *s, uint64_t bytes, uint64_t annotations)
{
	uint8_t *lengths = realloc(s->lengths, bytes);

	s->lengths = lengths ? lengths : s->lengths;
	struct spans_mark *grown = reallocarray(s->annotations, annotations, sizeof(*grown));

	s->annotations = grown ? grown : s->annotations;
	if (!lengths || !grown)
		return false;
	s->bytes_room = bytes;
	s->annotations_room = annotations;
	return true;
}

bool spans_add(struct spans *s, uint64_t end, bool gap)
{
	assert(end >= s->end);
	uint64_t left = (end - s->end) << 1 | gap, mark = s->count / STRIDE;

	if (end == s->end)
		return true;
	if ((s->bytes_room - s->bytes < LENGTH_MOST || mark >= s->annotations_room) &&
		!resize(s, s->bytes_room + s->bytes_room / 2 + 64,
			s->annotations_room + s->annotations_room / 2 + 1))
		return false;
	if (s->count++ % STRIDE == 0)
		s->annotations[mark] = (struct spans_mark){s->end, s->bytes};
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
	free(s->annotations);
}

uint64_t spans_bytes(const struct spans *s)
{
	return s->bytes_room + s->annotations_room * sizeof(*s->annotations);
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
	while (hi - lo > 1) { /* the last mark that is not after it; the first never is */
		uint64_t mid = lo + (hi - lo) / 2;

		if (s->annotations[mid].token > token)
			hi = mid;
		else
			lo = mid;
	}
	struct span span = {
		.end = s->annotations[lo].token, .next = s->lengths + s->annotations[lo].byte};

	do
		span_step(&span);
	while (span.end <= token);
	return span;
}
