/*
 * Before a session attaches, its stream's shards are compared with what their paths hold now. If
 * they differ, the attach is refused: for now, while the config is read again; or, if a session
 * still reads the former ones or was stopped by the change, until somebody acts.
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
struct session;

enum {
	COMPARE_MS = 1000,
	COMPARE_MOST = 2, /* at a time; the pool has four threads */
};

/* An attach that waits. */
struct compare_wait {
	STAILQ_ENTRY(compare_wait) link;
	const struct session *session; /* reserved, not fed */
	uint64_t since_ms;
	struct fault fault;
	/* It may attach, or @fault says why not. */
	void (*go)(struct compare_wait *wait, bool may);
};

struct comparison {
	uv_work_t work;
	struct control *control;
	const struct stream *stream; /* NULL: none is compared */
	struct fault fault;	     /* unless @same */
	bool same;
};

struct comparing {
	STAILQ_HEAD(, compare_wait) waiting;
	struct comparison of[COMPARE_MOST];
	/* A changed shard has stopped a session: until a reload, the shards must be restored. */
	bool stopped[LIMIT_STREAMS];
};

/* Calls wait->go() later. Its session and go are set. */
void compare_begin(struct control *control, struct compare_wait *wait);
/* Call once a second. */
void compare_clock(struct control *control);

#endif
