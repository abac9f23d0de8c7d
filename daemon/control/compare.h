/*
 * Before a session attaches, its stream's shards are compared with what their paths hold now. If
 * they differ, the config is read again, unless a session still reads the former ones or was
 * stopped by the change: then the attach is refused.
 *
 * libuv's pool compares: one stream at a time by one thread, and few streams at a time, so that
 * storage that hangs leaves threads for other attaches. An attach does not wait for it longer than
 * COMPARE_MS: then it goes on, because the reader compares each shard that it opens. All on the
 * loop.
 */
#ifndef TOKEND_COMPARE_H
#define TOKEND_COMPARE_H

#include "daemon/catalog/catalog.h"

#include <sys/queue.h>
#include <uv.h>

struct control;
struct generation;
struct session;

enum {
	COMPARE_MS = 1000,
	COMPARE_MOST = 2,	 /* at a time; the pool has four threads */
	COMPARE_LONG_MS = 200,	 /* an outcome that took longer */
	COMPARE_FRESH_MS = 1000, /* counts so long */
};

/* An attach that waits. */
struct compare_wait {
	STAILQ_ENTRY(compare_wait) link;
	struct session *session; /* reserved, not fed */
	uint64_t since_ms;
	unsigned reloads;   /* that it has waited for */
	bool reloading;	    /* waits for one */
	struct fault fault; /* what differed; then why it may not attach */
	/* It may attach: with the newest generation if @reloads > 0. False: @fault. */
	void (*go)(struct compare_wait *wait, bool may);
};

struct comparing {
	STAILQ_HEAD(compare_waits, compare_wait) waiting;
	struct comparison *of[LIMIT_STREAMS]; /* by slot */
	/* A changed shard has stopped a session: until a reload, the shards must be restored. */
	bool stopped[LIMIT_STREAMS];
	unsigned running;
};

void compare_init(struct comparing *all);
/* Calls wait->go() now or later. Its session, since_ms and go are set. */
void compare_begin(struct control *control, struct compare_wait *wait);
/* A reload has ended. @refused: why it failed, or "". */
void compare_reloaded(struct control *control, const char *refused);
/* Call once a second. */
void compare_clock(struct control *control);
void compare_free(struct comparing *all);

#endif
