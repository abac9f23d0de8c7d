/*
 * Limits the control thread's CPU time per user and per run. A member is a connection. It belongs
 * to a run of its user; all connections of a user that are not attached belong to one run without a
 * name. A user gets an eighth of the time while other users are connected, and a run gets an eighth
 * while other runs of its user are; all that wait at one time get half of it at most. The CPU time
 * of jobs in the pool and the keeper counts too. Members without credit wait: their packets stay in
 * their sockets, and none is refused. Members of one run take turns, one packet each.
 *
 * Time is charged after it was used, so the cost of a message need not be known before. All on the
 * loop, except pace_clock().
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
	TAILQ_ENTRY(pace_member) waits; /* in pace->waiting, if waiting */
	bool waiting;
};

/* A user, or a run of a user. Kept after its last member has left until its debt is paid, so that
 * reconnecting does not cancel the debt. */
struct pace {
	struct pace *parent; /* a run's user; a user's root */
	LIST_HEAD(, pace) children;
	LIST_ENTRY(pace) sibling;
	uint64_t key;	  /* a user's uid; a hash of the run's name; 0: the run without a name */
	unsigned members; /* connections */
	unsigned live;	  /* children with members */
	unsigned hungry;  /* children with waiting members */
	int64_t credit_ns;
	uint64_t filled_ms; /* when credit was added last */
	/* Of a run: */
	TAILQ_HEAD(, pace_member) waiting; /* for credit */
	struct pace_queue *in;		   /* the queue it is in; NULL: no member waits */
	TAILQ_ENTRY(pace) queue;
};

TAILQ_HEAD(pace_queue, pace);

struct paces {
	struct pace root;
	/* Runs with waiting members: those to be served now, and those without credit until the
	 * next millisecond. */
	struct pace_queue queue[2];
	unsigned now; /* index of the first of the two */
};

void paces_init(struct paces *paces);
void paces_free(struct paces *paces);

/* Adds a member, of user @uid and of the run without a name. False: out of memory. */
bool pace_join(struct paces *paces, struct pace_member *member, uid_t uid, uint64_t now_ms);
/* Moves @member to @run of its user. Out of memory, it stays where it is. */
void pace_run(struct paces *paces, struct pace_member *member, const char *run, uint64_t now_ms);
/* Removes @member, which does not wait. */
void pace_leave(struct pace_member *member);

/* CPU time of the calling thread, in ns. */
uint64_t pace_clock(void);
/* Takes @used_ns off the credit of the member's run and user, unless they are alone. */
void pace_charge(struct pace_member *member, uint64_t used_ns);

/* Does it have credit, so that it may be served now? */
bool pace_may(struct pace_member *member, uint64_t now_ms);
/* Queues it as the last of its run. Only pace_serve() serves it from now on. */
void pace_wait(struct paces *paces, struct pace_member *member);
/* Removes it from the queue, if it waits. */
void pace_forget(struct pace_member *member);
/*
 * Call every millisecond while members wait: calls @serve for each one that has credit. @alone: no
 * other user or run is connected. @serve returns true if @member must wait again. Returns false if
 * no member waits.
 */
bool pace_serve(struct paces *paces, uint64_t now_ms,
	bool (*serve)(struct pace_member *member, bool alone));
/* Call once a second: frees users and runs that have no member and no debt. */
void pace_clean(struct paces *paces, uint64_t now_ms);

#endif
