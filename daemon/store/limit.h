/*
 * How many GETs a bucket may have in flight (AIMD), so that many nodes that begin together do not
 * overload a store. The limit grows by one per answer until the store is first overloaded (slow
 * start), then by one per limit answers. Overload halves it, at most once a second. Pure: the
 * caller passes the time.
 */
#ifndef TOKEND_STORE_LIMIT_H
#define TOKEND_STORE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LIMIT_START = 8, LIMIT_LEAST = 4, LIMIT_HALVED_MS = 1000 };

struct limit {
	unsigned now, most;
	unsigned answers; /* since the last increase */
	bool halved;	  /* slow start is over */
	int64_t halved_ms;
};

/* @most: of the config, at least 1. */
struct limit limit_new(unsigned most);
/* A GET was answered while @in_flight of them, itself included, were in flight. A limit that is not
 * used does not grow. */
void limit_answered(struct limit *limit, unsigned in_flight);
/* The store asked to slow down, or did not answer in time. */
void limit_overload(struct limit *limit, int64_t now_ms);

#endif
