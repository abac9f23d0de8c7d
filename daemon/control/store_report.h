/* The state of the stores, with rates over the last seconds, for status and metrics. On the loop.
 */
#ifndef TOKEND_STORE_REPORT_H
#define TOKEND_STORE_REPORT_H

#include "daemon/store/store.h"

#include <jansson.h>

enum { STORE_REPORT_MOST = 64 }; /* buckets with rates, and in a status */

/* Counters of a bucket at a time. */
struct store_sample {
	uint64_t ms; /* uv_now(); 0: none */
	uint64_t requests, bytes, retries, first_byte[STORE_TIMES];
};

struct store_reports {
	struct stores *stores; /* NULL: there are none */
	struct {
		struct store_sample older, newer;
	} of[STORE_REPORT_MOST]; /* by the bucket's number */
};

/* Takes samples for the rates. Once a second. */
void store_report_clock(struct store_reports *r, uint64_t now_ms);
/* A list with an object for each bucket. The caller owns it. */
json_t *store_report(const struct store_reports *r, uint64_t now_ms);
/* As store_waits(): what session @id waits for, and for how many seconds. */
unsigned store_report_wait(
	const struct store_reports *r, uint32_t id, char *text, size_t text_bytes);
/* An object with the state of the cache, or null. The caller owns it. */
json_t *store_report_cache(const struct store_reports *r);
/* {"stores": […], "cache": {…}}. The caller frees it. NULL: there are none, or out of memory. */
char *store_report_text(const struct store_reports *r, uint64_t now_ms);

#endif
