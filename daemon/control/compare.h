/*
 * Before a session attaches, its stream's shards are compared with what their paths hold now. If
 * they differ, the attach is refused: for now, while the config is read again; or, if a session
 * still reads the former ones or was stopped by the change, until somebody acts.
 *
 * libuv's pool compares. It has a thread for each stream and some more, so a stream whose storage
 * hangs delays no other. Such a stream's attaches go on COMPARE_MS after the comparison began,
 * because the reader compares each shard that it opens. All on the loop.
 */
#ifndef TOKEND_COMPARE_H
#define TOKEND_COMPARE_H

#include "daemon/catalog/catalog.h"

#include <sys/queue.h>
#include <uv.h>

struct control;
struct session;

enum { COMPARE_MS = 1000 };

/* An attach that waits. */
struct compare_wait {
	STAILQ_ENTRY(compare_wait) link;
	const struct session *session; /* reserved, not fed */
	uint64_t since_ms;	       /* when the comparison began */
	struct fault fault;
	/* It may attach, or @fault says why not. */
	void (*go)(struct compare_wait *wait, bool may);
};

struct comparison {
	uv_work_t work;
	struct control *control;
	const struct stream *stream; /* NULL: it is not running */
	uint64_t since_ms;
	struct fault fault; /* unless @same */
	bool same;
};

struct comparing {
	STAILQ_HEAD(, compare_wait) waiting;
	struct comparison of[LIMIT_STREAMS]; /* by slot */
	/* A changed shard has stopped a session: until a reload, the shards must be restored. */
	bool stopped[LIMIT_STREAMS];
};

/* Calls wait->go() later. Its session and go are set. */
void compare_begin(struct control *control, struct compare_wait *wait);
/* Call once a second. */
void compare_clock(struct control *control);

#endif
