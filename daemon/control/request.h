/*
 * A request is an operator's change of a running job. The run's sessions at this daemon see the
 * request's number in their rings, and fetch its text. Daemons do not talk to each other: the
 * trainers' own all-reduce carries a request to ranks on other nodes
 * (client/python/tokend/control.py). The daemon does not interpret a request: it knows the
 * participants, and passes their answers to the operator. A participant is a rank and peer of the
 * run; its ring and connection may change meanwhile, because carrying out a request may need a
 * seek.
 *
 * A request ends when every participant has answered or is gone. It can be taken back as long as no
 * session has fetched it. A run has one request at a time. All on the loop.
 */
#ifndef TOKEND_REQUEST_H
#define TOKEND_REQUEST_H

#include "daemon/control/connection.h"
#include "daemon/control/session.h"
#include "proto/wire.h"

struct participant {
	uint64_t rank, world, micro_batch, peer;
	pid_t pid;
	char host[LIMIT_NAME_BYTES + 1];
	enum wire_outcome outcome; /* 0: none yet */
};

struct request {
	struct request *next;
	uint64_t number, since_ms;
	const struct stream *stream;
	char run[LIMIT_NAME_BYTES + 1];
	char kind[16];
	char args[WIRE_ARGS_BYTES];
	struct connection *asker; /* the operator, who waits for answers; NULL: has left */
	uint64_t serial;	  /* of the asker's query */
	bool fetched;		  /* by a session */
	bool has_cursor;	  /* a WIRE_DONE arrived */
	uint64_t cursor;	  /* hash of that of the first one */
	unsigned participants;
	struct participant participant[LIMIT_SESSIONS];
};

struct requests {
	struct request *first; /* the open ones */
	uint64_t last;	       /* number of the newest one */
};

void requests_init(struct requests *requests);
void requests_free(struct requests *requests);

/* Asserts the invariants between turns of the loop. */
void requests_check(const struct requests *requests);

/* Handlers. The first three are for attached connections. */
void request_pending(struct connection *c, const struct wire *w);
void request_describe(struct connection *c, const struct wire *w);
void request_answer(struct connection *c, const struct wire *w);
void request_new(struct connection *c, const struct wire *w);
void request_cancel(struct connection *c, const struct wire *w);

/* A session has attached: shows it the open request of its run, unless it has answered that
 * already. */
void request_join(struct session *session);
/* A session ends that was fed. */
void request_leave(struct session *session);
/* A connection closes. If it is an operator's, its request is taken back unless it was fetched. */
void request_abandon(struct connection *c);
/* Number of the request that this session has not answered, or 0. */
uint64_t request_number(const struct session *session);

#endif
