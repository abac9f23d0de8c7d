/*
 * A session is one attached process: what its client said at attach (stream, rank, world, …), its
 * ring, and the feed that fills it. It lives as long as its connection.
 *
 * Its end goes backwards: the data thread is asked to let go of the feed, and when it has,
 * everything is freed and the connection may close.
 */
#ifndef TOKEND_SESSION_H
#define TOKEND_SESSION_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/data_thread.h"
#include "daemon/control/ring_memory.h"
#include "proto/limits.h"

#include <sys/types.h>
#include <uv.h>

struct connection;
struct control;

struct session {
	struct control *control;
	struct connection *connection;
	const struct stream *stream;
	uint32_t id;
	uint64_t rank, world, micro_batch, peer, slots;
	uint64_t node; /* of NUMA, as the client said, or RING_MEMORY_ANYWHERE */
	char run[LIMIT_NAME_BYTES + 1];
	uint64_t bytes;		  /* of its ring, out of memory: */
	struct session *replaces; /* the ring that its client leaves for this one, until that is
				     gone; or NULL */
	uint64_t lent;		  /* bytes that `memory:` does not count meanwhile */
	uint64_t outlived_ms;	  /* when it last outlived a session that replaced it, or 0 */
	struct ring_memory memory;
	struct feed *feed;
	bool fed;      /* the data thread has the feed */
	bool helper;   /* operators' requests are not for it */
	bool unpinned; /* a GPU's driver refused its ring, which was logged */
	bool strict;   /* refuse it while another process reads for its rank */
	bool twins_looked_for, twin_told;
	uint64_t fed_since_ms;	/* this one, or those of its process whose place it took */
	uint64_t next;		/* position it was attached at */
	uint64_t full_since_ms; /* 0: not full */
	uv_work_t unmap;	/* its end */
	uint64_t used_ns;	/* CPU time of that */
	bool vacating;		/* its memory is being given back before its end */
	unsigned leaving_s;	/* for so long reads of it have been in flight since it left */
};

struct sessions {
	struct session *of[LIMIT_SESSIONS]; /* by id; NULL: free */
	uint32_t n;
	uint64_t staging_bytes; /* of the reader, a part of: */
	uint64_t memory_bytes;	/* rings and staging, in use or promised */
	uint64_t lent_bytes;	/* of those, of rings that replace another one: `memory:` counts a
				   pair once */
	uint64_t lost_wakes;	/* of sessions gone */
	uint64_t failures;	/* sessions stopped by a shard */
	bool nodes_forbidden;	/* logged once */
};

/* NULL: there is no room for another one. It becomes @c's. */
struct session *session_new(struct connection *c);
/* Frees what a session owns, and itself. It was never fed. */
void session_free(struct session *s);
/* Frees it in the pool. Its connection is closing, and the data thread has let go of the feed, or
 * never had it. */
void session_end(struct session *s);
/* The connection closes: takes the feed back from the data thread, or ends the session. */
void session_leave(struct session *s);

/* News from the data thread on session @id: DATA_THREAD_ flags. */
void session_news(struct control *control, uint32_t id, unsigned news);
/* Once a second. */
void session_clock(struct session *s, uint64_t now_ms);
/* Run @run belongs to @owner: sessions of others end. They may attach again. */
void sessions_owner(struct control *control, const char *stream, const char *run, uid_t owner);

/* Asserts what holds between turns of the loop: the table, the memory counted, pairs of rings. */
void sessions_check(const struct sessions *sessions);

/* Is it there, fed, and of this run? NULL is not. */
bool session_is_of(const struct session *s, const char *stream, const char *run);
/* Is it there, fed, and not leaving? NULL is not. */
bool session_is_live(const struct session *s);

#endif
