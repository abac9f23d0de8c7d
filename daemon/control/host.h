/* The daemon's host: the log, systemd, sockets, threads, cgroups, and memory for rings. */
#ifndef TOKEND_HOST_H
#define TOKEND_HOST_H

#include "proto/fault.h"
#include "proto/ring.h"
#include "proto/wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct config;

/* ---- log.c ---- */

/*
 * Lines on stderr. In systemd's journal each has sd-daemon's prefix for its level. Any thread may
 * log, and none waits for the reader of stderr: the log's own thread writes. If 1024 lines wait,
 * further lines are dropped and counted.
 */

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTE = 6 };

/* Starts the log's thread. Before that, or if it fails, the thread that logs writes. */
void log_start(void);
/* Waits until all lines are written, up to a second. */
void log_flush(void);

/* @client: @uid's clients can cause the line as often as they like. Of these, 256 of each level are
 * written at once, then one a second, and the number of suppressed ones. */
__attribute__((format(printf, 4, 5))) void log_write(
	bool client, uid_t uid, enum log_level level, const char *format, ...);

#define log_line(...)	     log_write(false, 0, __VA_ARGS__)
#define log_client(uid, ...) log_write(true, uid, __VA_ARGS__)

enum { LOG_STRANGERS = -1 }; /* the uid of all users who may not connect */

enum { LOG_FAULTS = 20, LOG_FAULT_BYTES = 400 };

struct log_fault {
	time_t at; /* Unix time; 0: none */
	enum log_level level;
	char text[LOG_FAULT_BYTES]; /* cut to this length */
};

/* Copies the last errors and warnings since the start, the newest first. Returns their number. */
unsigned log_faults(struct log_fault fault[LOG_FAULTS]);

/* ---- notify.c: systemd's protocol for services ---- */

/* Sends @state ("READY=1", …) to $NOTIFY_SOCKET, if that is set. */
void notify(const char *state);
/* Logs @why, and reports it to systemd. Returns the exit code, 1. */
int notify_failed_start(const char *why);
/* "WATCHDOG=1" is due each second while the process works, as of so many ms ago; 0: never. */
uint64_t notify_watchdog_ms(void);
/* Has systemd expect no WATCHDOG=1 while a start lasts, which may take minutes. */
void notify_starting(bool is);
/* The socket for clients that systemd passed, or -1. */
int notify_listen_fd(void);

/* ---- listen.c: the socket that trainers connect to ---- */

/*
 * A lock file next to our own socket shows without a race whether its daemon is alive. In embedded
 * mode, a program takes the lock first, and passes it to the private daemon that it starts. So only
 * one daemon starts, however many programs try. At its end a daemon removes the lock; a private one
 * also its log (PATH.log, if that is its stderr), and the directory if it is empty.
 *
 * Faults are FAULT_ARGUMENT or a system call's, with field "socket".
 */
struct listener {
	int fd;
	int lock_fd;	/* -1: the socket is systemd's */
	char path[108]; /* of our own socket; "": systemd's */
	char lock[128], log[128], parent[108];
	bool handed; /* the lock was taken by the process that started us */
	bool bound;  /* the file at path is ours */
};

/*
 * Returns the socket to listen at: $TOKEND_SOCKET, the config's, WIRE_SOCKET, or @path, which it
 * fills in and whose directory it creates. Users other than root may not write to /run/tokend:
 * their daemons use a directory of the user, and log it. NULL with @fault: it could not.
 */
const char *listener_place(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault);
/* Embedded mode: takes over @lock_fd, a lock on @path.lock, before listener_open() of @path. */
bool listener_take(struct listener *listener, const char *path, int lock_fd, struct fault *fault);
/* Listens; fails if another tokend listens at @path. Clients wait until they are accepted. Call it
 * before the shards are opened: so trainers can distinguish a daemon that starts from none. */
bool listener_open(struct listener *listener, const char *path, struct fault *fault);
/* Removes its files, for a process that ends before it serves. Async-signal-safe. */
void listener_remove(const struct listener *listener);
void listener_close(struct listener *listener);

/* ---- connection.c: sockets whose packets may contain descriptors ---- */

/*
 * The last close of a file may take for ever: a FUSE file system does not answer, or a TCP socket
 * lingers. It happens in the thread that receives a packet with a descriptor, or closes the socket
 * in which it waits. From Linux 6.16 on, socket_prepare() has the kernel refuse such packets. On
 * older kernels they are not received, and a thread of its own closes the socket.
 */

/* For a socket that listens or connects. */
void socket_prepare(int fd);
/* Does the kernel refuse descriptors for @fd, and has it since the socket exists? */
bool socket_refuses(int fd);

/* ---- server.c ---- */

/* Starts a thread that takes no signals; @thread NULL: detached. Returns an errno. */
int thread_start(pthread_t *thread, void *(*work)(void *), void *context);

/* ---- cgroup.c ---- */

/*
 * How much memory the cgroup leaves to this process: the minimum over all groups from its own up to
 * the root, by memory.max and memory.high. Limits of cgroup version 1 are ignored. Page cache does
 * not count as used: the kernel drops it before it kills a process. These functions read files: any
 * thread may call them, except the loop's.
 */
struct cgroup;

struct cgroup_room {
	uint64_t limit, used; /* bytes of the group that leaves the least */
	uint64_t kept;	      /* part of the limit reserved for memory other than rings */
	uint64_t left;	      /* limit - used - kept, or 0 */
	char path[256];	      /* of the group */
};

/* Finds the groups of this process below @root, which is "" except in tests. NULL: the kernel has
 * none of version 2, or out of memory. */
struct cgroup *cgroup_find(const char *root); /* free() it */
/* Fills @room. False: no group has a limit, or @cgroup is NULL. */
bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room);

/* ---- ring_memory.c ---- */

/* The two memfds of a ring: sealed and allocated, before the client gets them. */
struct ring_memory {
	struct ring ring;
	void *meta, *data;
	int meta_fd, data_fd; /* -1 once the client has them */
};

/* Not on the loop: large rings take hundreds of milliseconds. */
bool ring_memory_new(
	struct ring_memory *memory, const struct ring_geometry *g, struct fault *fault);
void ring_memory_close_fds(struct ring_memory *memory);
/* Frees the memory while reads into it are in flight: they continue into private pages at the same
 * addresses. Afterwards only ring_memory_free() may be called. */
void ring_memory_vacate(struct ring_memory *memory);
void ring_memory_free(struct ring_memory *memory);

#endif
