/*
 * How much of the control thread one of several may take. Everybody is a user, and within it a run,
 * or none: connections that are not attached. Where there are others beside it, a user or a run has
 * an eighth of the thread's CPU time, and of what the pool and the keeper do for it. What it sends
 * beyond that stays in its sockets, and they fill; nobody is refused. A connection has one packet a
 * turn, so that those of one run wait for each other equally.
 *
 * Time is charged as it was used, so nothing has to be known of what a message costs.
 */
#ifndef TOKEND_PACE_H
#define TOKEND_PACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct connection;
struct server;

/* A user or a run of it. Remembered after its last connection until its debt is paid: whoever comes
 * again at once finds it. */
struct pace {
	struct pace *parent; /* of a run: its user; of a user: the root */
	LIST_HEAD(, pace) children;
	LIST_ENTRY(pace) sibling;
	uint64_t key;	    /* uid, or a number for the run's name, or 0 */
	unsigned connected; /* connections */
	unsigned live;	    /* children that have any */
	int64_t credit_ns;
	uint64_t filled_ms; /* when credit was added last */
	/* of a run */
	TAILQ_HEAD(, connection) waiting; /* for credit */
	struct pace_queue *in;		  /* while some wait */
	TAILQ_ENTRY(pace) queue;
};

TAILQ_HEAD(pace_queue, pace);

struct paces {
	struct pace root;
	/* Runs where some wait: those to be served, and those that have no credit until the next
	 * millisecond. */
	struct pace_queue queue[2];
	unsigned now; /* which of the two is which */
};

void paces_init(struct paces *paces);
void paces_free(struct paces *paces);

/* A new connection, of its uid and no run. False if out of memory. */
bool pace_join(struct connection *c);
/* It is attached as a session of @run. */
void pace_run(struct connection *c, const char *run);
/* It is freed. */
void pace_leave(struct connection *c);

/* CPU time of the calling thread. */
uint64_t pace_clock(void);
void pace_charge(struct connection *c, uint64_t used_ns);

/* May it be served now? */
bool pace_may(struct connection *c);
/* Puts it behind the others of its run, to be served by pace_serve(); it must not be listened to
 * meanwhile.
 */
void pace_wait(struct connection *c);
/* It does not wait any more. */
void pace_forget(struct connection *c);
/* Every millisecond while some wait: serves these as far as their credit goes. False if none is
 * left. */
bool pace_serve(struct server *server);
/* Once a second: forgets who is gone and owes nothing. */
void pace_clean(struct paces *paces, uint64_t now_ms);

#endif
