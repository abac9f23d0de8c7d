/*
 * How fast a store is asked. Pure: the caller passes the time and random numbers.
 *
 * The limit is how many GETs a bucket may have in flight (AIMD), so that many nodes that begin
 * together do not overload a store. It grows by one per answer until the store is first overloaded
 * (slow start), then by one per limit answers. Overload halves it, at most once a second.
 *
 * Retries: when a GET is repeated, and when its fault becomes final.
 */
#ifndef TOKEND_STORE_PACE_H
#define TOKEND_STORE_PACE_H

#include "daemon/store/verdict.h"

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

enum {
	RETRY_FIRST_MS = 100,
	RETRY_MOST_MS = 20 * 1000,
	RETRY_TORN = 5,	 /* fetched again at once so often, then paced */
	RETRY_OTHER = 3, /* GETs in a row of an object that is not the listed one, in 10 s */
	RETRY_OTHER_MS = 5 * 1000,
	RETRY_STOP = -1,
	RETRY_FIRST_BYTE_MS = 2 * 1000,
	RETRY_FIRST_BYTE_MOST_MS = 30 * 1000,
};

/* The GETs of one range that failed. Initialise with zeros. */
struct tries {
	unsigned paced, torn, other, clock, timeouts;
};

struct retry_state {
	bool listed; /* a manifest says that the object exists */
	bool proven; /* a GET of the bucket succeeded with these credentials, or older ones */
	bool others; /* GETs of other objects succeeded since this one was first denied */
	unsigned retry_after_s;
	uint32_t random;
};

/* Adds the fault to @tries. Returns after how many milliseconds the range is fetched again, or
 * RETRY_STOP. */
int64_t retry_after(
	struct tries *tries, const struct verdict *verdict, const struct retry_state *state);
/* How long the next GET may take to its first byte. */
int64_t retry_first_byte_ms(const struct tries *tries);

#endif
