/* Reads a batch of a stream as a session would, for tokend --check. */
#ifndef TOKEND_REHEARSAL_H
#define TOKEND_REHEARSAL_H

#include "daemon/catalog/catalog.h"
#include "daemon/reader/reader.h"

enum { REHEARSAL_ROWS = 8 };

struct rehearsal {
	/* The first ones of the order, and one of each other dataset; of a dataset in a store only
	 * one, because a window is a GET. */
	unsigned rows;
	uint32_t least, most;	       /* of their tokens */
	const struct dataset *dataset; /* of a row that cannot be read; otherwise NULL */
};

/* False: @fault, with the path of the shard. Waits for storage. */
bool rehearse(const struct stream *stream, struct reader *reader, struct rehearsal *out,
	struct fault *fault);

#endif
