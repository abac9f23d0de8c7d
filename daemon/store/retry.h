/*
 * When a range is fetched again, and when its fault becomes final. Pure: the caller passes random
 * numbers.
 */
#ifndef TOKEND_STORE_RETRY_H
#define TOKEND_STORE_RETRY_H

#include "daemon/store/verdict.h"

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
	unsigned all;
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
