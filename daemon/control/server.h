/*
 * The control thread: one libuv loop with the socket, signals and timers. It holds no truth: every
 * session is what its client said at attach, and dies with its connection.
 *
 *   server.c      the loop: listening, signals, the clock, news from the data thread
 *   connection.c  one client's socket: packets in, packets out, who it is, when it dies
 *   session.c     attach and what it owns, and its end
 *   twins.c       two processes that read for one rank
 *   snapshot.c    snapshots, asked for by a session
 *   runs.c        whose each run is
 *   keeper.c      the thread that makes all calls on state_dir; errand.c: who waits for it
 *   request.c     an operator's word to a run, and what its sessions answer
 *   pace.c        how much of the control thread one of several may take
 *   hang.c        storage that does not answer
 *   status.c      what goes on; metrics.c says the same to Prometheus
 *
 * The loop makes no file-system call: those on state_dir are the keeper's, others run in libuv's
 * pool.
 */
#ifndef TOKEND_SERVER_H
#define TOKEND_SERVER_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/control/errand.h"
#include "daemon/control/feeder.h"
#include "daemon/control/listen.h"
#include "daemon/control/metrics.h"
#include "daemon/control/pace.h"
#include "daemon/control/quota.h"
#include "daemon/control/ring_memory.h"
#include "daemon/control/runs.h"
#include "proto/wire.h"

#include <uv.h>

struct server_options {
	const struct catalog *catalog;
	struct listener *listener; /* open; closed at the end */
	struct reader *reader;	   /* taken over */
	unsigned depth;
	unsigned connections;	/* at most so many: the descriptors of more are kept for shards */
	struct cgroup *cgroup;	/* or NULL */
	uint64_t staging_bytes; /* of the disk, counted in memory: */
	unsigned linger_s;	/* leave when there was no session for so long; 0: never */
};

/* Serves until SIGTERM or SIGINT. The exit code; reasons go to the log. */
int server_run(const struct server_options *options);

/* ---- between the files of the control thread ---- */

/* Why something is refused, until it can be said. */
struct refusal {
	const char *code;
	bool passing; /* the same attach may succeed later, once others leave: the client tries
			 again */
	char field[96];
	char text[LIMIT_TEXT_BYTES];
};

/* Fills @r with a final refusal; always false. */
__attribute__((format(printf, 4, 5))) bool refuse(
	struct refusal *r, const char *code, const char *field, const char *format, ...);
/*
 * The same, but passing: use it only for what ends by itself (memory, descriptors, connections,
 * start-up), and never for an attach that cannot fit: clients wait for their whole deadline.
 */
__attribute__((format(printf, 4, 5))) bool refuse_passing(
	struct refusal *r, const char *code, const char *field, const char *format, ...);

struct request; /* an operator's word to a run: request.c */

struct server {
	const struct server_options *options;
	uv_loop_t loop;
	uv_poll_t accept;
	uv_signal_t signal[2];
	uv_timer_t second, watchdog;
	uv_timer_t pace; /* runs while connections wait for their turn */
	uv_async_t news;
	struct listener *listener;
	struct feeder *feeder;
	struct metrics *metrics; /* or NULL */
	struct paces paces;
	struct keeper *keeper; /* makes all calls on state_dir */
	struct runs *runs;
	struct quotas *quotas;
	bool state_stalled; /* said */
	int spare_fd;	    /* given up to be able to refuse when we run out of them */
	bool stopping;
	uint64_t memory_bytes; /* rings and staging, in use or promised */
	uint64_t lent_bytes; /* of those, of rings that replace another one: `memory:` counts a pair
				once */
	uint64_t started_ms;
	uint64_t lonely_since_ms;
	uint64_t lost_wakes; /* of sessions gone */
	uint64_t failures;   /* sessions stopped by a shard */
	uint32_t sessions;
	bool nodes_forbidden; /* said once */
	struct reader_hang hang[LIMIT_STREAMS];
	struct session *session[LIMIT_SESSIONS];
	struct connection *connections;
	unsigned connected;		   /* length of that list */
	struct request *requests;	   /* the open ones */
	uint64_t asked;			   /* number of the last one */
	char incoming[LIMIT_PACKET_BYTES]; /* the packet being read; messages borrow from it */
	char outgoing[LIMIT_PACKET_BYTES];
};

struct connection {
	struct server *server;
	struct connection *next, *before;
	int fd;
	pid_t pid;
	uid_t uid;
	uv_poll_t poll;
	uv_poll_t process; /* the peer's pidfd, if it could be had */
	int pidfd;
	unsigned handles;      /* still open in libuv */
	unsigned jobs;	       /* of it in the pool */
	struct errand *errand; /* what it waits for from state_dir, or NULL */
	bool greeted, closing;
	struct pace *pace;
	struct quota *quota;	       /* of its user; NULL: that may not connect */
	TAILQ_ENTRY(connection) waits; /* in its pace, while waiting: it is not listened to then */
	bool waiting;
	uint64_t since_ms; /* of its last message */
	char host[LIMIT_NAME_BYTES + 1];
	uint64_t token; /* of its process, random, from its hello; 0: it sent none */
	struct session *session;
	struct request *request; /* whose answers it waits for, or NULL */
};

struct session {
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
	bool unpinned; /* a GPU's driver refused its ring, which was said */
	bool strict;   /* refuse it while another process reads for its rank */
	bool twins_looked_for, twin_told;
	uint64_t fed_since_ms;	/* this one, or those of its process that it took the place of */
	uint64_t next;		/* position it was attached at */
	uint64_t full_since_ms; /* 0: not full */
	uv_work_t unmap;	/* its end */
	uint64_t used_ns;	/* CPU time of that */
	bool vacating;		/* its memory is being given back before its end */
	unsigned leaving_s;	/* for so long reads of it have been in flight since it left */
};

/* server.c */
/* Connections wait for credit, or those that come do: pace_serve() is called until it has served
 * them. */
void server_pace(struct server *server);

/* connection.c */
/* Carries out the next packet. False if there is none, or the connection is closing. */
bool connection_receive(struct connection *c);
/* Goes on looking for packets, unless it is closing. */
void connection_listen(struct connection *c);
void connection_accept(struct server *server);
/* Sends a message, with @fds if there are any. A client that does not read its replies is dropped.
 */
void connection_send(struct connection *c, const struct wire *w, const int *fds, unsigned n);
/* Says why, in the log too, and closes. */
void connection_refuse(struct connection *c, const char *code, const char *field, const char *text);
/* The same with a @refusal that refuse() or refuse_passing() filled. */
void connection_refuse_with(struct connection *c, const struct refusal *refusal);
/* Answers with an error and stays. */
void connection_error(struct connection *c, const char *code, const char *field, const char *text);
void connection_close(struct connection *c);
/* Frees it once nothing of it is left: call after anything that may have been the last. */
void connection_settle(struct connection *c);

/* Each of these carries out one message. */
void session_attach(struct connection *c, const struct wire *w); /* session.c */
void snapshot_save(struct connection *c, const struct wire *w);	 /* snapshot.c */
void request_new(struct connection *c, const struct wire *w);	 /* hang.c */
/* Once a second. */
void hang_clock(struct server *server);
const struct reader_hang *hang_of(const struct server *server, const struct stream *stream);
/* The stream whose storage has not answered for the longest time, or NULL. */
const struct stream *hang_longest(const struct server *server);
/* Puts it into a message, unless there is none; that borrows @path. */
void hang_put(const struct reader_hang *hang, struct wire *w, char *path, size_t path_bytes);

/* request.c */
void request_cancel(struct connection *c, const struct wire *w);
void request_pending(struct connection *c);
void request_describe(struct connection *c);
void request_answer(struct connection *c, const struct wire *w);
void status_list(struct connection *c, const struct wire *w); /* status.c */

/* session.c */
/* News from the data thread on session @id. */
void session_news(struct server *server, uint32_t id, unsigned news);
/* The connection closes: takes the session back from the data thread, or frees it. */
void session_leave(struct session *session);
/* Once a second. */
void session_clock(struct session *session, uint64_t now_ms);

/* twins.c */
/* False, and @why: @s is strict, and another process reads for its rank, run and peer. */
bool twins_refuse(const struct session *s, struct refusal *why);
/* @s was fed: it may take the place of another one of its process. */
void twins_join(struct session *s);
/* Once a second: warns both. May close the connection. */
void twins_clock(struct session *s, uint64_t now_ms);

/* request.c */
/* A session has come: it sees an open request of its run, if it has not answered that on another
 * ring. */
void request_join(struct session *session);
/* A session that was fed ends. */
void request_leave(struct session *session);
/* A connection ends that may wait for answers. */
void request_abandon(struct connection *c);
/* The request that this session has not answered, or 0. */
uint64_t request_number(const struct session *session);
void requests_free(struct server *server);

#endif
