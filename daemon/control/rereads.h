/*
 * Logs and counts reads that were damaged, and intact when repeated.
 */
#ifndef TOKEND_REREADS_H
#define TOKEND_REREADS_H

#include <stdatomic.h>
#include <stdint.h>

struct rereads {
	_Atomic uint64_t total;
};

/* Begins. Call it before other threads exist; @rereads must outlive all reads. */
void rereads_watch(struct rereads *rereads);

#endif
