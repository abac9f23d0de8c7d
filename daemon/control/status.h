/*
 * The state of the daemon as one JSON document, which tokctl status, top, metrics and serve read
 * (wire.h: status). It is made anew for each query. On the loop.
 */
#ifndef TOKEND_STATUS_H
#define TOKEND_STATUS_H

#include "daemon/control/connection.h"
#include "daemon/control/counts.h"
#include "daemon/store/store.h"

#include <jansson.h>

enum { STATUS_STORES = 64 }; /* buckets with rates, and in a status */

/* The present state of sessions. */
struct stream_gauges {
	unsigned sessions, waiting;
	uint64_t slots, ready;	      /* batches, of all rings */
	uint64_t least_ready;	      /* of one ring */
	uint64_t published, released; /* batches */
	uint64_t full_ms;	      /* the longest: struct session */
	uint64_t store_wait_ms;	      /* the longest */
};

/* Counters of a bucket at a time. */
struct store_sample {
	uint64_t ms; /* uv_now(); 0: none */
	uint64_t requests, bytes, retries, first_byte[STORE_TIMES];
};

struct store_reports {
	struct stores *stores; /* NULL: there are none */
	struct {
		struct store_sample older, newer;
	} of[STATUS_STORES]; /* by the bucket's number */
};

/* Handles a status message. */
void status_reply(struct connection *c, const struct wire *w);
/* Of the sessions of a stream; NULL: of all, without waits for stores. */
struct stream_gauges status_gauges(const struct control *control, const struct stream *stream);
/* Takes samples for the rates of stores. Once a second. */
void status_clock(struct store_reports *r, uint64_t now_ms);
/* The state of the cache, or null. The caller owns it. @public: without its directory. */
json_t *status_cache(const struct store_reports *r, bool public);

#endif
