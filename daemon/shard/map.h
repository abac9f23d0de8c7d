/*
 * Where a shard's tokens are: spans of contiguous tokens, in the order in which they are served. A
 * span is a document, or a gap between two documents, and is never empty. Takes two or three bytes
 * per span, and twice as much where spans do not follow one another in the file.
 */
#ifndef TOKEND_SHARD_MAP_H
#define TOKEND_SHARD_MAP_H

#include <stdbool.h>
#include <stdint.h>

struct map_anchor;

struct map {
	uint32_t width;	  /* of a token in the file, in bytes; set it before the first span */
	bool joins;	  /* documents are not requested: spans that follow one another are one */
	uint64_t tokens;  /* of all spans */
	uint64_t byte;	  /* offset in the file of the end of the last span */
	uint64_t data_at; /* offset of the first token */
	uint64_t outside; /* tokens of all gaps */
	bool scattered;	  /* the spans are not contiguous */

	uint64_t last_at, last; /* joins: the last span, which is not encoded yet, and its tokens */
	uint8_t *code;		/* the encoded spans */
	uint64_t bytes, bytes_room;
	struct map_anchor *anchor;
	uint64_t spans, anchors_room;
};

/* Appends a span; ignores an empty one. @at: offset of its first token. False: out of memory. */
bool map_add(struct map *map, uint64_t at, uint64_t tokens, bool gap);
/* Call it after the last span and before any search. False: out of memory. */
bool map_done(struct map *map);
void map_free(struct map *map);
uint64_t map_bytes(const struct map *map); /* allocated memory, without the struct */

struct map_span {
	uint64_t begin, end; /* tokens */
	uint64_t at;	     /* offset of the first one */
	bool gap;
	const uint8_t *next; /* the code of the next span */
};

/* The span that contains @token (< map->tokens). */
struct map_span map_find(const struct map *map, uint64_t token);
/* Moves to the next span, which must exist. */
void map_step(const struct map *map, struct map_span *span);
/*
 * Sets *@byte to the offset of @token, and returns how many tokens are contiguous from it on: all
 * of them, or at least @most.
 */
uint64_t map_extent(const struct map *map, uint64_t token, uint64_t most, uint64_t *byte);
/* Clears @to[i] for each of the @n tokens token + i that is in a gap. */
void map_mask(const struct map *map, uint64_t token, uint64_t n, uint8_t *to);

#endif
