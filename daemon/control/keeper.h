/*
 * The keeper: the thread that makes all calls on state_dir, where snapshots and mix logs are kept.
 * If state_dir hangs, this thread hangs and nothing else does: neither the loop, nor libuv's pool,
 * nor an attach, nor a running trainer. Only clients that asked for something in state_dir wait,
 * and the loop ends their wait after KEEPER_DEADLINE_MS (errand.h).
 *
 * Jobs of one user are carried out in the order in which they were given. Users take turns: the one
 * that was served least recently is next.
 */
#ifndef TOKEND_KEEPER_H
#define TOKEND_KEEPER_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum {
	KEEPER_DEADLINE_MS = 20000, /* nobody waits longer for state_dir */
	KEEPER_NOBODY = -1,	    /* as a uid: the daemon itself */
};

struct keeper;

struct keeper_job {
	struct keeper_job *next;
	uid_t uid;	   /* the user that asked: users take turns */
	uint64_t since_ms; /* when it was given, by keeper_clock() */
	uint64_t turn;	   /* the user's last one: smaller is longer ago */
	bool dropped;	   /* nobody waits for it: skipped unless it has begun */
	bool awaited, over;
	void (*work)(struct keeper_job *job); /* in the keeper's thread; may block */
	void (*done)(struct keeper_job *job); /* on the loop; frees the job. Dropped or not */
};

/* NULL: no memory, or no thread. */
struct keeper *keeper_start(uv_loop_t *loop, struct fault *fault);
uint64_t keeper_clock(void);
/* On the loop: queues @job, whose uid, work and done are set. */
void keeper_give(struct keeper *keeper, struct keeper_job *job);
/* On the loop: nobody waits for @job any more. Its done() is still called. */
void keeper_drop(struct keeper *keeper, struct keeper_job *job);
/*
 * In any thread: keeper_give(), and waits up to @patience_ms, but not at all if the keeper has been
 * busy with one job for so long. True: it has been carried out, and the caller has it until
 * keeper_finish(). False: it is the keeper's.
 */
bool keeper_await(struct keeper *keeper, struct keeper_job *job, unsigned patience_ms);
void keeper_finish(struct keeper *keeper, struct keeper_job *job);
/* Jobs that wait or are being carried out. */
unsigned keeper_jobs(struct keeper *keeper);
/* For how long the job that is being carried out has been; 0: there is none. */
uint64_t keeper_busy_ms(struct keeper *keeper);
/* On the loop: waits up to @patience_ms until every job given has been carried out. False: some
 * have not. */
bool keeper_wait(struct keeper *keeper, unsigned patience_ms);

/* The loop ends. Jobs given before are still carried out; keeper_stop() waits for them. */
void keeper_close(struct keeper *keeper);
/*
 * After the loop: carries out what waits, ends the thread and frees everything. False: that took
 * longer than @patience_ms, *@left jobs were not carried out, and the thread and its memory stay.
 */
bool keeper_stop(struct keeper *keeper, unsigned patience_ms, unsigned *left);

#endif
