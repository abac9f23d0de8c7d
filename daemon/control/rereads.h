/*
 * Bytes that were damaged when first read, and good when read again: logged, and counted for
 * metrics.
 */
#ifndef TOKEND_REREADS_H
#define TOKEND_REREADS_H

#include <stdatomic.h>
#include <stdint.h>

struct rereads {
	_Atomic uint64_t total;
};

/* From now on. Before there are other threads; @rereads outlives all reads. */
void rereads_watch(struct rereads *rereads);

#endif
