/*
 * A shard's tokens as a sequence of spans. A span is a document, or a gap between two documents,
 * and is never empty. Takes two or three bytes per span.
 */
#ifndef TOKEND_SHARD_SPANS_H
#define TOKEND_SHARD_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct spans_anchor;

/* All zero: no spans. */
struct spans {
	uint8_t *lengths;
	uint64_t bytes, bytes_room;
	struct spans_anchor *anchors;
	uint64_t count, anchors_room;
	uint64_t end; /* of the last one */
};

/*
 * Appends a span that ends before token @end, which is at least spans->end. Adds nothing if the two
 * are equal. False: out of memory.
 */
bool spans_add(struct spans *spans, uint64_t end, bool gap);
/* Frees spare memory. */
void spans_trim(struct spans *spans);
void spans_free(struct spans *spans);
uint64_t spans_bytes(const struct spans *spans); /* allocated memory, without the struct */

struct span {
	uint64_t end;
	bool gap;
	const uint8_t *next; /* the encoded length of the next span */
};

/* The span that contains @token (< spans->end). */
struct span spans_find(const struct spans *spans, uint64_t token);
/* Moves to the next span, which must exist. */
void span_step(struct span *span);

#endif
