/*
 * A shard's tokens in a row of spans, each a document or a gap between two, none of them empty: two
 * or three bytes each in memory, for what formats and lists say of documents.
 */
#ifndef TOKEND_SHARD_SPANS_H
#define TOKEND_SHARD_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct spans_mark;

/* All zero: none yet. */
struct spans {
	uint8_t *lengths;
	uint64_t bytes, bytes_room;
	struct spans_mark *annotations;
	uint64_t count, annotations_room;
	uint64_t end; /* of the last one */
};

/* One more, up to @end, which is above the last one's, if that is not the same: then it is none.
 * False: out of memory. */
bool spans_add(struct spans *spans, uint64_t end, bool gap);
/* Gives back what adding left over. */
void spans_trim(struct spans *spans);
void spans_free(struct spans *spans);
uint64_t spans_bytes(const struct spans *spans); /* of memory, besides the struct */

struct span {
	uint64_t end;
	bool gap;
	const uint8_t *next; /* length */
};

/* The span that @token (< spans->end) is in. */
struct span spans_find(const struct spans *spans, uint64_t token);
/* Goes on to the next one; there is one. */
void span_step(struct span *span);

#endif
