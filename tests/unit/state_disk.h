/*
 * Promises about state_dir, and checks that a disk keeps them: for tests of power cuts. The real
 * code saves, notes the run's cursor and reads on a disk in memory. While one is mounted, file
 * calls of the linked code go to it, and each may fail. Its descriptors begin at 1000, so others
 * may be used.
 */
#ifndef TEST_STATE_DISK_H
#define TEST_STATE_DISK_H

#include "daemon/control/control.h"
#include "tests/disk/model.h"
#include "tests/unit/rng.h"

enum {
	VALUES = 6,	  /* different cursors; a set of them is a bit mask */
	SOURCES = 24,	  /* datasets of each: it takes three sectors */
	TAGS = 3,	  /* a and b; the last one is the run's cursor */
	RECOVER_EACH = 7, /* after each seventh cut, the next daemon saves */
};

/* A fault in the calls of this thread. */
struct disk_fault {
	unsigned call; /* the number of the call that fails, from 1 on; 0: none */
	int error;
	bool late; /* the call has its effect, but reports an error, as NFS may */
	bool met;
	const char *name; /* of that call */
};

extern struct disk_machine {
	struct disk *disk; /* NULL: none is mounted */
	unsigned calls;	   /* made since the mount */
	unsigned random;   /* random numbers drawn */
	const char *call;  /* the name of the present call */
	struct disk_fault fault;
	void (*before)(void *context); /* called before each call, if it is set */
	void *context;
	unsigned open_files; /* now */
} disk_machine;

extern __thread int disk_process; /* that makes this thread's calls */

/* Where a test is. */
extern struct scene {
	const char *scenario;
	unsigned step;
	struct disk_machine machine; /* at the last call that was followed by a cut or kill */
	struct rng rng;
	uint64_t cuts; /* so far */
} scene;

struct promise {
	unsigned may; /* values that the tag may have */
	bool must;    /* it has one */
};

struct world {
	const char *state_dir;
	struct promise tag[TAGS];
	bool shared; /* by two daemons: the order of saves is not known */
};

struct daemon {
	struct state state;
};

struct step {
	char kind; /* s: save; n: note the cursor of an attach */
	char tag;
	unsigned value;
};

int state_set_up(void **state);
int state_tear_down(void **state);
/* The bytes of value @v. */
const struct encoded *state_value(unsigned v);
/* Fails the test, and says where. */
__attribute__((format(printf, 1, 2))) void broken(const char *format, ...);

struct daemon daemon_start(const struct world *w, int process);
struct state_run run_of(struct daemon *d, const char *name);
/* False: the step failed; @fault is set if it is a save. */
bool take_step(struct world *w, struct daemon *d, const struct step *step, struct fault *fault);

/* The value at tag number @t by the real reading code; -1: none. */
int load(const struct world *w, const char *run, unsigned t, struct fault *fault);
/* Does the run have a temporary file? */
bool has_temporaries(const struct world *w);

/* Mounts @disk, as another machine that has just started. Returns the present one. */
struct disk_machine mount_disk(struct disk *disk);
void unmount_disk(struct disk_machine old);
/* The power fails now: all outcomes, if they are not more than @most; otherwise some. Everything
 * that was promised must be there. */
void cut_now(const struct disk *disk, const struct world *w, uint64_t most);

#endif
