/*
 * A shard's tokens as a row of spans. A span is a document or a gap between two, and is not empty.
 * Takes two or three bytes a span.
 */
#ifndef TOKEND_SHARD_SPANS_H
#define TOKEND_SHARD_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct spans_mark;

/* All zero: no spans yet. */
struct spans {
	uint8_t *lengths;
	uint64_t bytes, bytes_room;
	struct spans_mark *annotations;
	uint64_t count, annotations_room;
	uint64_t end; /* of the last one */
};

/* Adds a span up to @end, which is at least the last one's end. If it is the same, nothing is
 * added. False: out of memory. */
bool spans_add(struct spans *spans, uint64_t end, bool gap);
/* Frees spare memory. */
void spans_trim(struct spans *spans);
void spans_free(struct spans *spans);
uint64_t spans_bytes(const struct spans *spans); /* memory that they take, without the struct */

struct span {
	uint64_t end;
	bool gap;
	const uint8_t *next; /* length */
};

/* The span that @token (< spans->end) is in. */
struct span spans_find(const struct spans *spans, uint64_t token);
/* Moves to the next span, which must exist. */
void span_step(struct span *span);

#endif
