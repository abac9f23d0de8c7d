/* A job: trainers that train together, what they have taken, and the checkpoints of their model. */
#ifndef TOKEND_SIM_JOB_H
#define TOKEND_SIM_JOB_H

#include "tests/sim/plan.h"

#include "client/lib/tokend.h"

enum {
	JOBS_MOST = 16,
	WORLD_MOST = 64,
	SAVES = 8,
	AHEAD = 6,
	HOLD = 6,
	TAGS = 3,
	KIND = 16,
	ARGS = 512,
	OBEYED = 64
};

/* Positions that a job's model has been trained on, from @base on. */
struct history {
	uint64_t base, room, checked; /* so many are complete */
	uint8_t *seen;		      /* 0: no, 1: taken, 2: skipped */
};

void history_clear(struct history *h, uint64_t base);
void history_take(struct history *h, uint64_t position);
void history_skip(struct history *h, uint64_t from, uint64_t to);
/* Forgets what came after a checkpoint at @position. */
void history_back(struct history *h, uint64_t position);
/* Every position before @to was taken or skipped, once. */
void history_check(struct history *h, uint64_t to);

struct save {
	uint8_t bytes[4096];
	size_t n;
	uint64_t next;
	struct plan plan;
};

/* A snapshot in state_dir: the acknowledged bytes, or those of later attempts. */
struct snapshot {
	struct node *node;
	bool acknowledged;
	uint8_t bytes[4096];
	size_t n;
	unsigned attempts;
	struct {
		uint8_t bytes[4096];
		size_t n;
	} attempt[4];
	bool vague; /* too many attempts */
};

/* A change of the mix, by names. */
struct mix {
	unsigned n;
	const char *name[DATASETS];
	double weight[DATASETS];
};

enum action { NOTHING, SAVE, SNAPSHOT, RESCALE, BACK, SET_MIX, STOP };

struct trainer;

/* What became of a request. */
struct obeyed {
	uint64_t number;
	enum tokend_outcome outcome;
};

struct job {
	unsigned number;
	const struct stream_plan *stream;
	char run[16];
	uid_t uid;
	unsigned first_node, nodes;
	uint64_t world;
	uint32_t micro, slots;
	unsigned every, ahead, hold;
	bool polls, strict;
	bool nervous;	 /* signals interrupt its calls */
	bool large;	 /* a world of 64 */
	int64_t compute; /* ns of a step, most */
	struct trainer *trainer[WORLD_MOST];
	unsigned alive;
	bool running, aborting, over, stopping, stopped;
	/* the collective */
	unsigned arrived;
	uint64_t round, value, result;
	uint8_t shared[4096]; /* what one rank broadcasts */
	size_t shared_n;
	uint64_t shared_from;
	char kind[KIND], args[ARGS];
	uint64_t handled; /* number of the last request */
	struct obeyed obeyed[OBEYED];
	unsigned obeys;
	enum action action; /* the director's wish */
	struct mix mix;
	uint64_t next_world; /* after the next meeting; 0: stays */
	uint32_t next_micro;
	/* where it starts */
	bool begun;
	uint64_t begin_at; /* without a checkpoint */
	int from;	   /* number of the save; -1: begin */
	char tag[16];	   /* or a snapshot */
	/* truth */
	struct plan plan;
	struct history history;
	struct save save[SAVES];
	unsigned saves;
	struct snapshot snapshot[TAGS];
	uint64_t progress; /* steps of rank 0 */
	uint64_t next;	   /* the position that all ranks have reached */
};

struct trainer {
	struct job *job;
	struct proc *proc;
	uint64_t rank;
	struct tokend *t;
	struct node *node;
	unsigned held;
	struct {
		struct tokend_batch batch;
		uint64_t sum, number;
	} hold[HOLD + 1];
	uint64_t number;  /* of batches taken */
	unsigned waiting; /* batches that are not committed */
	uint64_t uncommitted[AHEAD + 64];
	uint64_t reattached;
	unsigned since; /* steps since the last meeting */
};

extern struct job world_job[JOBS_MOST];
extern unsigned world_jobs, world_ranks;

/* operator.c */
void operator_start(struct job *job);
/* A process attaches with the run's cursor, but another seed, and must be refused. */
void stranger_start(struct job *job);
/* Another user attaches to the job's run, and must be refused. */
void foreigner_start(struct job *job);
unsigned operators_alive(void);
bool operator_kill(void); /* false: none is alive */

/* director.c */
void director_begin(uint64_t events, uint32_t without);
bool director_done(void);
/* All faults end; what is down starts again. */
void director_heal(void);
/* A fault each virtual hour. */
void director_hourly(void);
void director_end(void);
extern const char *const director_classes[];

void job_make(struct job *job, unsigned number);
void job_free(struct job *job);
/* Starts all its trainers: at the beginning, or at a checkpoint. */
void job_start(struct job *job);
void saves_prune(struct job *job);
/* All its trainers die now. */
void job_kill(struct job *job);
/* From a trainer: the job has failed, and ends soon. */
void job_abort(struct job *job, const char *why);
/* All ranks meet; returns the largest value. */
uint64_t job_reduce(struct job *job, uint64_t value);
void job_new_trainer(struct job *job, uint64_t rank);
/* All snapshots of the node are still there. */
void snapshots_check(const struct node *node);

void trainer_main(void *argument);
/* Does it wait for a batch that is ready, or for a daemon that waits, too? */
bool trainer_starves(const struct proc *proc, const struct proc *daemon);
/* trainer_meet.c: what ranks do together */
bool trainer_meet(struct trainer *r);
/* Has the job carried out request @number with this outcome? */
bool job_obeyed(const struct job *job, uint64_t number, uint64_t outcome);
bool trainer_check_equal(struct trainer *r);
/* Prints an error of the library that is not @expected, and fails. */
void trainer_check_error(bool expected, int got, const char *why);
void trainer_let_go(struct trainer *r, unsigned keep);
void trainer_commit(struct trainer *r, unsigned keep);
void trainer_detach(struct trainer *r);
void mix_invent(const struct job *job, struct mix *m);

#endif
