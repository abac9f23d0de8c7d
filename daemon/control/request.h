/*
 * Requests: an operator's change of a running job. The sessions that the run has at this daemon see
 * the request's number in their rings and fetch the rest. Daemons do not talk to each other: the
 * trainers' own all-reduce brings a request to ranks on other nodes
 * (client/python/tokend/control.py). The daemon carries nothing out and reads no arguments; it
 * knows the participants, and passes their answers on. A participant is a rank and peer of the run,
 * whatever ring and connection it has by now: carrying a request out may mean to seek.
 *
 * A request lives until every participant has answered or is gone, or until it is taken back, which
 * is only possible while nobody has fetched it. A run has one at a time.
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
	enum wire_outcome outcome; /* 0: not seen it yet */
};

struct request {
	struct request *next;
	uint64_t number, since_ms;
	const struct stream *stream;
	char run[LIMIT_NAME_BYTES + 1];
	char kind[16];
	char *args;
	struct connection *asker; /* who waits for the answers; NULL: left */
	uint64_t serial;	  /* of the asker's query */
	bool fetched, differed;
	void *cursor; /* of the first WIRE_DONE */
	size_t cursor_bytes;
	unsigned participants;
	struct participant *participant;
};

struct requests {
	struct request *first; /* the open ones */
	uint64_t last;	       /* number of the newest one */
};

void requests_init(struct requests *requests);
void requests_free(struct requests *requests);

/* Asserts what holds between turns of the loop. */
void requests_check(const struct requests *requests);

/* Each carries out one message; the first three of an attached connection. */
void request_pending(struct connection *c, const struct wire *w);
void request_describe(struct connection *c, const struct wire *w);
void request_answer(struct connection *c, const struct wire *w);
void request_cancel(struct connection *c, const struct wire *w);

/* A session has come: it sees an open request of its run, unless it answered it on another ring. */
void request_join(struct session *session);
/* A session that was fed ends. */
void request_leave(struct session *session);
/* A connection ends that may wait for answers. */
void request_abandon(struct connection *c);
/* The request that this session has not answered, or 0. */
uint64_t request_number(const struct session *session);

/* ---- for request_new.c ---- */

/* Does a request to this run concern the session? NULL: no. */
bool request_concerns(const struct session *s, const struct stream *stream, const char *run);
/* Does its answer still come? */
bool participant_waits(const struct participant *p);
unsigned request_waiting(const struct request *r);
/* Makes every session of its run a participant. False: out of memory. */
bool request_invite(struct control *control, struct request *r);
/* Gives it its number and shows it to its participants. It is the daemon's from here on. */
void request_begin(struct connection *asker, struct request *r);
void request_free(struct request *r);

#endif
