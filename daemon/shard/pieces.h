/*
 * An index of tokens that are not contiguous: the pieces of a shard in order. The tokens of a piece
 * are contiguous; it may be a document. Takes 17 bytes per piece.
 */
#ifndef TOKEND_SHARD_PIECES_H
#define TOKEND_SHARD_PIECES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct piece_end {
	uint64_t tokens; /* of this piece and all before it; strictly ascending */
	uint64_t at;	 /* offset of its first token in the file */
};

/*
 * `first` shortens a search and saves cache misses: entry b is the piece of token b << shift. It
 * has one entry for about four pieces.
 */
struct pieces {
	struct piece_end *end;
	uint64_t count, room;
	uint32_t *first;
	uint64_t firsts;
	unsigned shift;
};

enum { PIECES_A_FIRST = 4, PIECES_A_LINE = 4 };

/* Allocates room for @most pieces; it grows. False: out of memory. */
static inline bool pieces_new(struct pieces *p, uint64_t most)
{
	*p = (struct pieces){.room = most};
	if (most > UINT32_MAX) /* would take 64 GiB, and overflow `first` */
		return false;
	p->end = calloc(most + 1, sizeof(*p->end));
	return p->end != NULL;
}

static inline void pieces_free(struct pieces *p)
{
	free(p->end);
	free(p->first);
}

static inline uint64_t pieces_tokens(const struct pieces *p)
{
	return p->count ? p->end[p->count - 1].tokens : 0;
}

/* Makes room for one more. */
static inline bool pieces_grow(struct pieces *p)
{
	uint64_t room = 2 * p->room + PIECES_A_LINE;
	struct piece_end *more;

	if (p->count < p->room)
		return true;
	more = room > UINT32_MAX ? NULL : realloc(p->end, (room + 1) * sizeof(*more));
	if (!more)
		return false;
	p->end = more;
	p->room = room;
	return true;
}

/* Appends a piece; ignores an empty one. False: out of memory, or more than 2^64 tokens. */
static inline bool pieces_add(struct pieces *p, uint64_t tokens, uint64_t at)
{
	uint64_t end;

	if (tokens == 0)
		return true;
	if (__builtin_add_overflow(pieces_tokens(p), tokens, &end) || !pieces_grow(p))
		return false;
	p->end[p->count++] = (struct piece_end){end, at};
	return true;
}

/* Their memory after pieces_done(). */
static inline uint64_t pieces_bytes(const struct pieces *p)
{
	return (p->count + 1) * sizeof(*p->end) + p->firsts * sizeof(*p->first);
}

/* Call it after the last pieces_add() and before any search. False: out of memory. */
static inline bool pieces_done(struct pieces *p)
{
	uint64_t tokens = pieces_tokens(p), piece = 0;
	struct piece_end *fit = realloc(p->end, (p->count + 1) * sizeof(*p->end));

	p->end = fit ? fit : p->end;
	p->room = p->count;
	while (tokens >> p->shift > p->count / PIECES_A_FIRST)
		p->shift++;
	p->firsts = (tokens >> p->shift) + 1;
	p->first = malloc(p->firsts * sizeof(*p->first));
	if (!p->first)
		return false;
	for (uint64_t i = 0; i < p->firsts; i++) {
		while (piece + 1 < p->count && p->end[piece].tokens <= i << p->shift)
			piece++;
		p->first[i] = (uint32_t)piece;
	}
	return true;
}

/*
 * The piece that contains @token (< pieces_tokens()). The search is branch-free: nothing to
 * mispredict.
 */
static inline uint64_t pieces_find(const struct pieces *p, uint64_t token)
{
	uint64_t i = token >> p->shift, last = i + 1 < p->firsts ? p->first[i + 1] : p->count - 1;
	const struct piece_end *base = p->end + p->first[i];

	__builtin_prefetch(base); /* overlap the cache misses of the search */
	__builtin_prefetch(base + PIECES_A_LINE);
	for (uint64_t n = last - p->first[i] + 1; n > 1;) {
		uint64_t half = n / 2;

		base += half * (base[half - 1].tokens <= token);
		n -= half;
	}
	return (uint64_t)(base - p->end);
}

/* As shard_format's extent() and document(). */
static inline uint64_t pieces_extent(
	const struct pieces *p, uint32_t width, uint64_t token, uint64_t *byte)
{
	const struct piece_end *piece = p->end + pieces_find(p, token);
	uint64_t begin = piece == p->end ? 0 : piece[-1].tokens;

	*byte = piece->at + (token - begin) * width;
	return piece->tokens - token;
}

static inline uint64_t pieces_document(const struct pieces *p, uint64_t token)
{
	return p->end[pieces_find(p, token)].tokens;
}

#endif
