/*
 * The cost of a stream's reads in a store, in GETs and bytes, by arithmetic over the order and
 * the tables of its datasets. Nothing is read.
 */
#ifndef TOKEND_CTL_COST_H
#define TOKEND_CTL_COST_H

#include "client/ctl/offline/history.h"

enum cost_mode { COST_WINDOW, COST_PIECE, COST_MODES };

/* Sums over all nodes, except for the cache. */
struct cost {
	uint64_t gets, bytes;
	uint64_t used;	/* bytes of the windows */
	uint64_t cache; /* bytes on each node */
	bool exact;	/* otherwise an estimate */
	bool chosen;	/* the config reads the dataset so */
};

struct cost_query {
	uint64_t from, to; /* positions */
	uint64_t nodes;
};

/*
 * Fills @cost[datasets of h->cursor][COST_MODES]. @map gives the stream's dataset of each, as
 * stream_map() does; a dataset without windows in the range may be NULL. False: out of memory.
 */
bool cost_compute(const struct ctl_history *h, const struct dataset *const *map,
	const struct cost_query *q, struct cost (*cost)[COST_MODES]);

#endif
