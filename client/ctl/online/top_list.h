/* The sessions that `tokctl top` shows, with the history of their rates. */
#ifndef TOKEND_CTL_TOP_LIST_H
#define TOKEND_CTL_TOP_LIST_H

#include "proto/limits.h"

#include <jansson.h>
#include <stdbool.h>

enum { TOP_HISTORY = 64 }; /* updates that a sparkline can show */

/* The columns that rows can be sorted by. */
enum top_column {
	TOP_STREAM,
	TOP_RUN,
	TOP_RANK,
	TOP_POSITION,
	TOP_RATE,
	TOP_READY,
	TOP_WAITS,
	TOP_COLUMNS
};

struct top_rates {
	float of[TOP_HISTORY]; /* tokens per second; the newest is the last */
	unsigned n;
};

struct top_row {
	char stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	uint64_t pid, rank, world, position, released, ready, slots, full_ms, store_ms;
	uint64_t ms;	 /* time of its last status; 0: never listed */
	uint64_t update; /* number of the update that listed it last */
	bool request;	 /* an operator's request is open */
	double rate;	 /* tokens per second since the status before; 0 the first time */
	struct top_rates rates;
};

struct top_list {
	struct top_row row[LIMIT_SESSIONS]; /* by the session's number */
	uint32_t order[LIMIT_SESSIONS];	    /* the rows of the last update */
	unsigned n;
	uint32_t found[LIMIT_SESSIONS]; /* those of this update so far */
	unsigned founds;
	uint64_t update, now_ms;
	double rate; /* of all sessions */
	struct top_rates rates;
};

/* An update: a beginning, an item per session, and an end. Without an end, the rows stay those of
 * the update before. */
void top_list_begin(struct top_list *l, uint64_t now_ms);
void top_list_add(struct top_list *l, const json_t *session);
void top_list_end(struct top_list *l);
/* The daemon does not answer: nothing is released. */
void top_list_pause(struct top_list *l);
/* Orders the rows by a column, then by the session's number. */
void top_list_sort(struct top_list *l, enum top_column by, bool descending);

#endif
