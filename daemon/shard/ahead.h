/*
 * Readahead of objects while a shard is opened. A header, a table or an index is read in many small
 * pieces, and each would be a GET. So 64 KiB are read at the head and at the tail of an object, and
 * more where reads are sequential. One shard and its side files share a readahead, so what is read
 * twice takes one GET. A read that failed is not repeated.
 */
#ifndef TOKEND_SHARD_AHEAD_H
#define TOKEND_SHARD_AHEAD_H

#include "daemon/shard/bytes.h"

struct ahead;

struct ahead *ahead_new(void); /* NULL: out of memory */
/* One more owner. */
struct ahead *ahead_share(struct ahead *ahead);
/* Frees it after its last owner. NULL: does nothing. */
void ahead_free(struct ahead *ahead);
/* The shard is open: drops all bytes. From then on any thread may read. NULL: does nothing. */
void ahead_end(struct ahead *ahead);
/* As store_read(). Until ahead_end(), one thread at a time. */
bool ahead_read(struct ahead *ahead, struct stores *stores, const struct object *object,
	uint64_t at, void *to, size_t n, struct fault *fault);

#endif
