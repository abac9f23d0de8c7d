/*
 * How much of the control thread each of several users and runs may take. A member is a connection.
 * It belongs to a run of its user; connections that are not attached belong to a run of their own.
 * While there are others, a user or a run gets an eighth of the thread's CPU time, and of what the
 * pool and the keeper do for it. Members without credit wait: their packets stay in their sockets,
 * and nobody is refused. A member has one packet a turn, so members of one run wait equally long.
 *
 * Time is charged as it was used, so the cost of a message need not be known.
 */
#ifndef TOKEND_PACE_H
#define TOKEND_PACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

struct pace;

struct pace_member {
	struct pace *pace;
	TAILQ_ENTRY(pace_member) waits; /* in its pace, while waiting */
	bool waiting;
};

/* A user or a run of it. Kept after its last member has left until its debt is paid: a user that
 * comes back at once finds it. */
struct pace {
	struct pace *parent; /* of a run: its user; of a user: the root */
	LIST_HEAD(, pace) children;
	LIST_ENTRY(pace) sibling;
	uint64_t key;	  /* uid, or a number for the run's name, or 0 */
	unsigned members; /* connections */
	unsigned live;	  /* children that have any */
	int64_t credit_ns;
	uint64_t filled_ms; /* when credit was added last */
	/* of a run */
	TAILQ_HEAD(, pace_member) waiting; /* for credit */
	struct pace_queue *in;		   /* while some wait */
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

/* A new member, of user @uid and no run. False: out of memory. */
bool pace_join(struct paces *paces, struct pace_member *member, uid_t uid, uint64_t now_ms);
/* Moves @member to @run of its user. If there is no memory for that it stays where it is. */
void pace_run(struct paces *paces, struct pace_member *member, const char *run, uint64_t now_ms);
/* @member is freed. */
void pace_leave(struct pace_member *member);

/* CPU time of the calling thread. */
uint64_t pace_clock(void);
void pace_charge(struct pace_member *member, uint64_t used_ns);

/* May it be served now? */
bool pace_may(struct pace_member *member, uint64_t now_ms);
/* Puts it after the others of its run, to be served by pace_serve(). Do not serve it otherwise
 * meanwhile. */
void pace_wait(struct paces *paces, struct pace_member *member);
/* It does not wait any more. */
void pace_forget(struct pace_member *member);
/*
 * To be called every millisecond while some wait: calls @serve for these as far as their credit
 * goes. @alone: nobody else needs the time. @serve returns true if @member is to wait again.
 * Returns false if none is left.
 */
bool pace_serve(struct paces *paces, uint64_t now_ms,
	bool (*serve)(struct pace_member *member, bool alone));
/* Once a second: frees what has no member and owes nothing. */
void pace_clean(struct paces *paces, uint64_t now_ms);

#endif
