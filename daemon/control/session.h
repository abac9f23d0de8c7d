/*
 * A session is one attached process: its rank, world and so on from the attach message, its ring,
 * and the feed that fills the ring. It lives as long as its connection.
 *
 * To end a session, the feed is requested back from the data thread. When it is back, the session
 * is freed, and then its connection. All on the loop.
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
	uint64_t node; /* NUMA node that the client asked for, or RING_MEMORY_ANYWHERE */
	char run[LIMIT_NAME_BYTES + 1];
	uint64_t bytes; /* of its ring, counted in memory: */
	/* The session that its client is about to leave for this one, until that has ended; or
	 * NULL. */
	struct session *replaces;
	uint64_t lent;	      /* bytes that memory: does not count meanwhile */
	uint64_t outlived_ms; /* when a session that replaced it last ended before it, or 0 */
	struct ring_memory memory;
	struct feed *feed;
	bool fed;   /* the data thread has the feed */
	bool again; /* the client was attached before, and lost its connection */
	bool process_ended;
	bool helper; /* it gets no operators' requests */
	bool strict; /* refuse it while another process reads for its rank */
	bool left;   /* its client reads from the session that replaces it */
	bool sought; /* its process had another session, and its twins were not looked for since */
	bool twin_told;
	bool mix_told;	       /* that the config has another mix */
	uint64_t fed_since_ms; /* since when it, or sessions of its process before it, are fed */
	uint64_t next;	       /* the position at which it attached */
	uint64_t attached_ms;
	uint64_t full_since_ms; /* since when its ring is full, and no slot is released; 0: not full
				 */
	uint64_t full_released; /* slots released by then */
	uv_work_t unmap;	/* the job that frees its memory */
	bool vacating;		/* its memory is being freed while reads are in flight */
	unsigned leaving_s;	/* how long it has been closed with reads in flight */
};

struct sessions {
	struct session *of[LIMIT_SESSIONS]; /* by id; NULL: free */
	uint32_t n;
	uint64_t staging_bytes; /* of the reader, included in memory_bytes */
	uint64_t memory_bytes;	/* rings and staging, in use or promised */
	uint64_t lent_bytes; /* the part of it that memory: does not count: see session_memory.h */
	uint64_t lost_wakes; /* of sessions that have ended */
	uint64_t failures;   /* sessions stopped by a shard */
};

/* Makes a session for @c. NULL: LIMIT_SESSIONS are in use, or out of memory. */
struct session *session_new(struct connection *c);
/* Frees a session that was never fed. */
void session_free(struct session *s);
/* Frees a session in the pool. Its connection is closing, and the data thread does not have its
 * feed. */
void session_end(struct session *s);
/* The connection closes: requests the feed back from the data thread, or ends the session. */
void session_leave(struct session *s);

/* Handles news of the data thread (DATA_THREAD_ flags) about session @id. */
void session_news(struct control *control, uint32_t id, unsigned news);
/* Call once a second. */
void session_clock(struct session *s, uint64_t now_ms);

/* Asserts the invariants between turns of the loop: the table, counted memory, pairs of rings. */
void sessions_check(const struct sessions *sessions);

/* Is the session live, and of this run? NULL: no. */
bool session_is_of(const struct session *s, const char *stream, const char *run);
/* Is the session fed and not closing? NULL: no. */
bool session_is_live(const struct session *s);

/* For log_session() and log_about(). @shard: or NULL. */
struct log_subject session_subject(const struct session *s, const char *shard);
/* Logs that the session begins. */
void session_log_attach(const struct session *s);
/* Logs that the session that was fed ends. Its feed still exists. */
void session_log_detach(const struct session *s);

#endif
