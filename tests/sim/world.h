/*
 * The simulated world: nodes with daemons, jobs with trainers, operators, disks. See sim.c.
 *
 * The files, each of which uses those before it:
 *
 *   fiber.c     threads and virtual time
 *   proc.c      processes: memory, descriptors, threads, death; the C library's calls for these
 *   socket.c    sockets with delay and loss; poll
 *   ring.c      memfds and mappings
 *   grant.c     ring memory and runs that a daemon has granted
 *   disk.c      disks that lose what was not synced: tests/disk
 *   loop.c      libuv
 *   storage.c   the daemon's reader: tokens are a function of (dataset, shard, offset)
 *   order.c     what the truth about a run's mixes says is at a position
 *   node.c      a node and its daemon: server_run() itself
 *   history.c   what a job has taken, and what it may take
 *   trainer.c   a trainer: libtokend itself; trainer_meet.c: common steps of all ranks
 *   job.c       trainers of one job, their collective, checkpoints and restarts
 *   operator.c  requests to running jobs
 *   director.c  faults and actions
 *   world.c     one history, from beginning to end; month.c: a long one
 *   sim.c       seeds and replay; shrink.c: smaller failures
 *   engine.c    an engine alone, with clients; engine_share.c: a model of its turns
 */
#ifndef TOKEND_SIM_WORLD_H
#define TOKEND_SIM_WORLD_H

#include "tests/sim/fiber.h"
#include "tests/unit/rng.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* ---- chance and checks ---- */

extern struct rng world_rng;
extern uint64_t world_seed;
extern bool world_verbose;
extern void *world_main_stack;
extern size_t world_main_bytes;

static inline uint64_t draw(uint64_t n)
{
	return rng_below(&world_rng, n);
}

static inline bool chance(uint64_t n)
{
	return n > 0 && draw(n) == 0;
}

__attribute__((noreturn)) void world_broken(const char *what, const char *file, int line);
#define CHECK(what) ((what) ? (void)0 : world_broken(#what, __FILE__, __LINE__))
/* One line about what happens, if --verbose. */
__attribute__((format(printf, 1, 2))) void world_say(const char *format, ...);

/* The real calls; the daemon's and the client's go to __wrap_… */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void __real_free(void *at);
void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);

/* ---- processes: proc.c ---- */

enum { FDS = 600, FD_FIRST = 1000 };

enum file_kind {
	FILE_SOCKET,
	FILE_LISTENER,
	FILE_MEMORY,
	FILE_PROCESS,
	FILE_DISK,
	FILE_OTHER,
};

/* What a descriptor refers to. */
struct file {
	enum file_kind kind;
	unsigned refs;
	void *of;
	void (*close)(struct file *file); /* the last descriptor was closed */
};

struct proc {
	struct proc *next; /* of all that are alive */
	char name[32];
	int pid;
	uid_t uid;
	bool alive, gone;
	bool hurried;	/* a signal comes in each wait, within a millisecond */
	uint64_t token; /* of process.c */
	struct node *node;
	struct file *fd[FDS];
	struct block *blocks; /* its heap */
	uint64_t bytes;
	struct view *views; /* its mappings of rings */
	uint64_t ring_bytes;
	uint64_t ring_limit;	  /* a daemon's memory: */
	struct booking *bookings; /* of its sessions */
	/* Is it waiting for something that has happened? NULL: it never does. */
	bool (*starves)(const struct proc *proc, const struct proc *peer);
	struct loop *loops; /* of libuv */
	void (*ended)(struct proc *proc);
	void *owner;
	unsigned watchers; /* pidfds */
};

struct proc *proc_new(const char *name, uid_t uid, struct node *node);
/* SIGKILL: at whatever instruction it is. If the caller is its fiber, this does not return. */
void proc_kill(struct proc *proc);

struct file *file_new(enum file_kind kind, void *of, void (*close)(struct file *file));
void file_put(struct file *file);
int fd_add(struct proc *proc, struct file *file); /* takes over the reference; -1: EMFILE */
struct file *fd_get(int fd);			  /* of the current process, or NULL (EBADF) */
unsigned fd_count(const struct proc *proc);
/* Is there something to read, or the end? */
bool file_readable(const struct file *file);
/* Something about a file of @proc has changed: wakes those who poll. */
void proc_poke(struct proc *proc);
void world_poke_all(void);
bool world_is_proc(const void *proc);
extern int64_t world_clock_offset;
/* A system call takes a moment, and others may run meanwhile. */
void system_call(void);

/* ---- sockets: socket.c ---- */

struct file *socket_listen(struct proc *proc, const char *path);
/* Severs a random connection of @proc; false: it has none. */
bool socket_sever(struct proc *proc);
bool socket_readable(const struct file *file);
extern int64_t socket_delay_most; /* ns */

/* ---- rings: ring.c ---- */

/* Is [@at, @at + @n) ring memory that a process with that mapping may write? */
bool ring_mapped(struct proc *proc, const void *at, size_t n);
void rings_of_dead(struct proc *proc);

/* ---- what a daemon has granted: grant.c ---- */

/* Bytes of rings that its sessions have been granted. */
uint64_t grant_booked(const struct proc *proc);
void grants_of_dead(struct proc *proc);

/* ---- disks: disk.c ---- */

struct disk;
/* The power fails: what was not synced is kept, lost or torn. */
void disk_power_cut(struct disk *disk);
/* Reads a file without any process. Returns its length, or -1. */
ssize_t disk_peek(const struct disk *disk, const char *path, void *bytes, size_t capacity);

struct disk_faults {
	unsigned enospc, eio, slow; /* one call in so many; 0: never */
};
uint64_t disk_injected(void); /* errors so far */

/* ---- libuv: loop.c ---- */

void loops_free(struct proc *proc);
void loop_signal(struct proc *proc, int number);

#endif
