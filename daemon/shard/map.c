/*
 * A span is stored as 4 · tokens, plus 2 for a gap, plus 1 if it does not follow the previous one
 * in the file. Then the number of bytes between the two comes next, with its sign as the lowest
 * bit. Numbers are stored in seven bits a byte, low bits first. An anchor for every STRIDE-th span
 * tells a search where to start.
 */
#include "daemon/shard/format.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { STRIDE = 32, CODE_MOST = 20 /* bytes */ };

/* Where a span begins: its first token, the end of the previous one in the file, and its code. */
struct map_anchor {
	uint64_t token, byte, code;
};

static void put(struct map *m, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		m->code[m->bytes++] = (uint8_t)(value | 0x80);
	m->code[m->bytes++] = (uint8_t)value;
}

/* Decodes the number at *@code, and moves to the next one. */
static inline uint64_t take(const uint8_t **code)
{
	const uint8_t *at = *code;
	uint64_t value = *at & 0x7f;

	for (unsigned shift = 7; *at++ & 0x80; shift += 7)
		value |= (uint64_t)(*at & 0x7f) << shift;
	*code = at;
	return value;
}

static void store_last(struct map *m)
{
	uint64_t skipped = m->last_at - m->byte;

	if (m->spans == 0)
		m->data_at = m->last_at;
	m->scattered |= m->spans > 0 && skipped != 0;
	m->failed |= !m->counts &&
		     (!bytes_grow((void **)&m->code, &m->bytes_room, m->bytes + CODE_MOST, 1) ||
			     !bytes_grow((void **)&m->anchor, &m->anchors_room,
				     m->spans / STRIDE + 1, sizeof(*m->anchor)));
	if (!m->counts && !m->failed) {
		if (m->spans % STRIDE == 0)
			m->anchor[m->spans / STRIDE] =
				(struct map_anchor){m->tokens - m->last, m->byte, m->bytes};
		put(m, m->last << 2 | (uint64_t)m->last_gap << 1 | (skipped != 0));
		if (skipped != 0)
			put(m, skipped >> 63 ? ~skipped << 1 | 1 : skipped << 1);
	}
	m->spans++;
	m->outside += m->last_gap ? m->last : 0;
	m->byte = m->last_at + m->last * m->width;
}

void map_add(struct map *m, uint64_t at, uint64_t tokens, bool gap)
{
	assert(m->width > 0 && tokens < UINT64_C(1) << 61);
	if (tokens == 0)
		return;
	if (m->last > 0 && m->joins && at == m->last_at + m->last * m->width) {
		m->last += tokens;
	} else if (!m->counts || !m->scattered) {
		if (m->last > 0)
			store_last(m);
		m->last_at = at;
		m->last = tokens;
		m->last_gap = gap;
	}
	m->tokens += tokens;
}

bool map_done(struct map *m)
{
	if (m->last > 0)
		store_last(m);
	m->last = 0;
	return !m->failed;
}

void map_free(struct map *m)
{
	free(m->code);
	free(m->anchor);
}

uint64_t map_bytes(const struct map *m)
{
	return m->bytes_room + m->anchors_room * sizeof(*m->anchor);
}

/* @byte: the end of the span before in the file. */
static inline void step(struct map_span *span, uint64_t byte)
{
	uint64_t code = take(&span->next), skipped = code & 1 ? take(&span->next) : 0;

	span->begin = span->end;
	span->end += code >> 2;
	span->gap = code >> 1 & 1;
	span->at = byte + (skipped & 1 ? ~(skipped >> 1) : skipped >> 1);
}

void map_step(const struct map *m, struct map_span *span)
{
	step(span, span->at + (span->end - span->begin) * m->width);
}

struct map_span map_find(const struct map *m, uint64_t token)
{
	uint64_t lo = 0, hi = (m->spans - 1) / STRIDE + 1;

	assert(token < m->tokens);
	while (hi - lo > 1) { /* the last anchor at or before @token */
		uint64_t mid = lo + (hi - lo) / 2;

		if (m->anchor[mid].token > token)
			hi = mid;
		else
			lo = mid;
	}
	struct map_span span = {.end = m->anchor[lo].token, .next = m->code + m->anchor[lo].code};

	step(&span, m->anchor[lo].byte);
	while (span.end <= token)
		map_step(m, &span);
	return span;
}

uint64_t map_extent(
	const struct map *m, struct map_span *from, uint64_t token, uint64_t most, uint64_t *byte)
{
	if (!from->next)
		*from = map_find(m, token);
	while (from->end <= token)
		map_step(m, from);
	struct map_span span = *from;

	*byte = span.at + (token - span.begin) * m->width;
	while (span.end - token < most && span.end < m->tokens) {
		uint64_t end = span.at + (span.end - span.begin) * m->width;

		map_step(m, &span);
		if (span.at != end)
			return span.begin - token;
	}
	return span.end - token < most ? span.end - token : most;
}

void map_mask(const struct map *m, uint64_t token, uint64_t n, uint8_t *to)
{
	uint64_t at = token, end = token + n;

	if (n == 0)
		return;
	for (struct map_span s = map_find(m, token);; map_step(m, &s)) {
		uint64_t last = s.end < end ? s.end : end;

		if (s.gap)
			memset(to + (at - token), 0, last - at);
		at = last;
		if (at == end)
			return;
	}
}
