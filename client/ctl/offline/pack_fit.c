/*
 * Best-fit packing of documents into rows: largest first, each into the fullest row that it fits
 * (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The result depends only on the
 * documents' lengths.
 */
#include "client/ctl/offline/shards.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* ---- a set of numbers up to a row's length: a binary tree, whose leaves are the numbers ---- */

struct set {
	uint8_t *node; /* [2 * leaves] is a number below it in the set? 1: the root */
	uint32_t leaves;
};

static bool set_new(struct set *s, uint32_t most)
{
	for (s->leaves = 1; s->leaves <= most;)
		s->leaves *= 2;
	s->node = calloc(s->leaves, 2);
	return s->node;
}

static void set_put(struct set *s, uint32_t i, bool in)
{
	i += s->leaves;
	for (s->node[i] = in; i > 1; i /= 2)
		s->node[i / 2] = s->node[i] | s->node[i ^ 1];
}

/* The least member from @i on, or NONE. */
static uint32_t set_next(const struct set *s, uint32_t i)
{
	for (i += s->leaves; !s->node[i]; i++) {
		while (i % 2 == 1) /* a right child: what is right of it is right of its parent */
			i /= 2;
		if (i == 0) /* the root was the last */
			return NONE;
	}
	while (i < s->leaves)
		i = 2 * i + !s->node[2 * i];
	return i - s->leaves;
}

/* ---- rows of rests: of what is left of documents after full rows ---- */

struct fit {
	const uint64_t *end;
	uint32_t documents, row_tokens;
	struct set free;  /* the numbers of free tokens that some row has */
	uint32_t *head;	  /* [row_tokens + 1] the last row with so many free tokens */
	uint32_t *next;	  /* by row: the one before it with as many; then its first document */
	uint32_t *with;	  /* [row_tokens + 1] the first document with such a rest */
	uint32_t *after;  /* [documents] the next one with as long a rest; then in its row */
	uint32_t *row_of; /* [documents] the row of its rest */
};

static uint32_t rest_of(const struct fit *f, uint32_t d)
{
	return (uint32_t)((f->end[d] - (d ? f->end[d - 1] : 0)) % f->row_tokens);
}

/* The row with the least free tokens ≥ @n loses them; a new one, @rows, if there is none. */
static uint32_t fill(struct fit *f, uint32_t n, uint32_t rows)
{
	uint32_t left = set_next(&f->free, n), row = rows;

	if (left == NONE) {
		left = f->row_tokens;
	} else {
		row = f->head[left];
		f->head[left] = f->next[row];
		if (f->head[left] == NONE)
			set_put(&f->free, left, false);
	}
	left -= n;
	if (left > 0 && f->head[left] == NONE)
		set_put(&f->free, left, true);
	f->next[row] = f->head[left];
	f->head[left] = row;
	return row;
}

static void fill_rows(struct fit *f)
{
	size_t lengths = (f->row_tokens + UINT64_C(1)) * sizeof(uint32_t);
	uint32_t rows = 0;

	memset(f->head, 0xff, lengths);
	memset(f->with, 0xff, lengths);
	for (uint32_t d = f->documents; d-- > 0;) {
		f->after[d] = f->with[rest_of(f, d)];
		f->with[rest_of(f, d)] = d;
	}
	for (uint32_t n = f->row_tokens; n-- > 1;)
		for (uint32_t d = f->with[n]; d != NONE; d = f->after[d]) {
			f->row_of[d] = fill(f, n, rows);
			rows += f->row_of[d] == rows;
		}
	memset(f->next, 0xff, f->documents * sizeof(*f->next));
	for (uint32_t d = f->documents; d-- > 0;)
		if (rest_of(f, d) > 0) {
			f->after[d] = f->next[f->row_of[d]];
			f->next[f->row_of[d]] = d;
		}
}

/* Writes the pieces of all rows, in the order of their first documents. Returns their number. */
static size_t list_pieces(const struct fit *f, struct pack_piece *to)
{
	uint32_t row = f->row_tokens;
	uint64_t at = 0;
	size_t n = 0;

	for (uint32_t d = 0; d < f->documents; at = f->end[d++]) {
		for (; f->end[d] - at >= row; at += row)
			to[n++] = (struct pack_piece){(uint32_t)at, row, true};
		if (at == f->end[d] || f->next[f->row_of[d]] != d)
			continue;
		for (uint32_t e = d; e != NONE; e = f->after[e])
			to[n++] = (struct pack_piece){(uint32_t)f->end[e] - rest_of(f, e),
				rest_of(f, e), f->after[e] == NONE};
	}
	return n;
}

struct pack_piece *pack_fit(
	const uint64_t *end, uint32_t documents, uint32_t row_tokens, size_t *pieces)
{
	size_t lengths = row_tokens + UINT64_C(1),
	       most = documents + end[documents - 1] / row_tokens;
	struct fit f = {.end = end,
		.documents = documents,
		.row_tokens = row_tokens,
		.head = calloc(lengths, sizeof(uint32_t)),
		.with = calloc(lengths, sizeof(uint32_t)),
		.next = calloc(documents, sizeof(uint32_t)),
		.after = calloc(documents, sizeof(uint32_t)),
		.row_of = calloc(documents, sizeof(uint32_t))};
	struct pack_piece *piece = NULL;

	if (set_new(&f.free, row_tokens) && f.head && f.with && f.next && f.after && f.row_of) {
		fill_rows(&f);
		piece = calloc(most, sizeof(*piece));
	}
	if (piece)
		*pieces = list_pieces(&f, piece);
	free(f.free.node);
	free(f.head);
	free(f.with);
	free(f.next);
	free(f.after);
	free(f.row_of);
	return piece;
}
