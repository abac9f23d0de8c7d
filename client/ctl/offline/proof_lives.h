/*
 * The lives of a run, where its processes began, as their records tell. A life
 * is a set of beginnings that follow each other in time with one position, world and micro_batch:
 * those of the ranks.
 */
#ifndef TOKEND_CTL_PROOF_LIVES_H
#define TOKEND_CTL_PROOF_LIVES_H

#include "client/ctl/offline/records.h"

#include <stdbool.h>

struct proof_life {
	uint64_t time_ns; /* of its first beginning */
	uint64_t position, left, world, micro_batch;
	uint64_t reached; /* the position that had been reached before it */
	uint64_t ranks;	  /* beginnings */
};

/* Returns the lives by time, which the caller frees, and sets *@n ≥ 1. NULL: out of memory. */
struct proof_life *proof_lives(const struct record_peer *p, size_t *n);

#endif
