/* The clock, and waiting for the daemon. */
#ifndef TOKEND_WAIT_H
#define TOKEND_WAIT_H

#include "client/lib/handle.h"

#define WAIT_MS INT64_C(1000000) /* ns */

enum { WAIT_SLICE_MS = 1000 }; /* longest single wait, so a lost wake-up costs at most this */

/* CLOCK_MONOTONIC in ns. */
int64_t wait_now(void);

static inline int64_t wait_earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * Waits until @fd is ready for @events, or until @until (ns, see wait_now()). @fd -1: only for the
 * time. Returns 1 if it is ready, 0 after @until, TOKEND_EAGAIN if idle() ended the wait.
 */
int wait_ready(struct tokend *t, int fd, short events, int64_t until);

#endif
