/*
 * The window table of a dataset: which shard contains window w, and where. It is computed from the
 * shards' sizes alone.
 */
#ifndef TOKEND_TABLE_H
#define TOKEND_TABLE_H

#include "proto/order.h"

struct table {
	uint64_t window_tokens; /* seq_len + extra */
	uint64_t stride;
	uint64_t shards;
	uint64_t windows; /* N: the sum over the shards */
	uint64_t total_tokens;
	uint64_t short_shards, short_tokens; /* of shards without a window, and their tokens */
	uint64_t tail_tokens;		     /* of other shards: in no window if nothing slides */
	uint64_t *tokens;		     /* [shards] */
	uint64_t *first_window; /* [shards + 1] the number of each shard's first window; the last
				   entry is N */
};

/* Computes all that follows from tokens. The caller allocates and owns the arrays. */
void table_number(struct table *table);

/* Finds the shard and the token offset of @window, below N, in @epoch (with the slide). */
void table_locate(const struct table *table, const struct order_dataset *order, uint64_t seed,
	uint64_t epoch, uint64_t window, uint64_t *shard, uint64_t *offset);

/*
 * The windows of @shard that contain any of the tokens [@token, @token + @tokens) in @epoch:
 * [*first, *first + *count), numbered in the dataset. One token may be in several, as windows
 * overlap (extra, or a stride below the window), and those of the left-over tail are in none.
 */
void table_touching(const struct table *table, const struct order_dataset *order, uint64_t seed,
	uint64_t epoch, uint64_t shard, uint64_t token, uint64_t tokens, uint64_t *first,
	uint64_t *count);

/* Tokens that no window contains, over all shards, if nothing slides. */
static inline uint64_t table_unserved(const struct table *table)
{
	return table->short_tokens + table->tail_tokens;
}

#endif
