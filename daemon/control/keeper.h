/*
 * The keeper: the only thread that touches state_dir, where snapshots and mix logs are kept. If
 * state_dir hangs, only this thread hangs: the loop, libuv's pool, attaches and running trainers
 * continue. Only clients that asked for something in state_dir wait, and the loop ends their wait
 * after KEEPER_DEADLINE_MS (errand.h).
 *
 * Jobs of one user are done in the order in which they were given. Users take turns: the user
 * served least recently is next.
 */
#ifndef TOKEND_KEEPER_H
#define TOKEND_KEEPER_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum {
	KEEPER_DEADLINE_MS = 20000, /* clients wait no longer for state_dir */
	KEEPER_NOBODY = -1,	    /* a uid: the daemon itself */
};

struct keeper;

struct keeper_job {
	struct keeper_job *next;
	uid_t uid;	   /* the user that asked */
	uint64_t since_ms; /* when it was given, by keeper_clock() */
	uint64_t turn;	   /* the user's last turn: a smaller number is longer ago */
	bool dropped;	   /* nobody waits for it: skipped unless it has begun */
	bool awaited;	   /* a thread is in keeper_await() for it */
	bool over;
	void (*work)(struct keeper_job *job); /* in the keeper's thread; may block */
	void (*done)(struct keeper_job *job); /* on the loop, always called; frees the job */
};

/* NULL with @fault: out of memory, or no thread. */
struct keeper *keeper_start(uv_loop_t *loop, struct fault *fault);
/* Milliseconds of the monotonic clock. */
uint64_t keeper_clock(void);
/* On the loop: queues @job. Its uid, work and done are set. */
void keeper_give(struct keeper *keeper, struct keeper_job *job);
/* On the loop: nobody waits for @job now. Its done() is still called. */
void keeper_drop(struct keeper *keeper, struct keeper_job *job);
/*
 * In any thread: gives @job, and waits up to @patience_ms until it is done, but not at all if the
 * present job has taken that long already. True: @job is done, and is the caller's until
 * keeper_finish(), which passes it to its done(). False: @job stays the keeper's.
 */
bool keeper_await(struct keeper *keeper, struct keeper_job *job, unsigned patience_ms);
void keeper_finish(struct keeper *keeper, struct keeper_job *job);
/* Number of jobs that wait or are running. */
unsigned keeper_jobs(struct keeper *keeper);
/* How many of them wait for this user. */
unsigned keeper_jobs_of(struct keeper *keeper, uid_t uid);
/* How long the present job has been running; 0: none. */
uint64_t keeper_busy_ms(struct keeper *keeper);
/* On the loop: waits up to @patience_ms until all jobs are done. False: some are not. */
bool keeper_wait(struct keeper *keeper, unsigned patience_ms);

/* The loop is about to end. Jobs given before are still done; keeper_stop() waits for them. */
void keeper_close(struct keeper *keeper);
/*
 * After the loop: waits up to @patience_ms for all jobs, ends the thread and frees everything.
 * False: *@left jobs were not done, and the thread and its memory stay.
 */
bool keeper_stop(struct keeper *keeper, unsigned patience_ms, unsigned *left);

#endif
