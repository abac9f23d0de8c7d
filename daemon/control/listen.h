/*
 * The socket that trainers connect to: systemd's if it gives us one, otherwise our own. A lock file
 * next to our own tells a live daemon from a dead one's left-over without a race, and disappears
 * with us.
 *
 * Embedded mode. A program that wants a private daemon takes the lock first and passes it to the
 * process that it starts. So only one starts, however many try, and the lock is held exactly while
 * a daemon starts or serves. Whatever is next to the socket then is ours to remove: lock, log
 * (PATH.log, if that is our stderr), and the directory if it is empty.
 *
 * Faults are FAULT_ARGUMENT or a system call's, with field "socket".
 */
#ifndef TOKEND_LISTEN_H
#define TOKEND_LISTEN_H

#include "proto/fault.h"

#include <stdbool.h>

struct listener {
	int fd;
	int lock_fd;	/* -1 where systemd owns the socket */
	char path[108]; /* of our own socket */
	char lock[128], log[128], parent[108];
	bool handed; /* the lock was taken by the process that started us */
	bool bound;  /* the file at path is ours */
};

/* Takes over @lock_fd, the lock next to @path, before listener_open() of the same path. */
bool listener_take(struct listener *listener, const char *path, int lock_fd, struct fault *fault);
/*
 * Fails, for example, if another tokend listens at @path. From here on clients can connect; they
 * wait in the queue until they are accepted. Call it before the shards are opened, which may take
 * minutes: a trainer then knows a daemon that starts from none.
 */
bool listener_open(struct listener *listener, const char *path, struct fault *fault);
/* Removes the socket and the files next to it. Async-signal-safe: for a process that ends before it
 * serves. */
void listener_remove(const struct listener *listener);
/* Also for one that was taken and not opened, or closed before. */
void listener_close(struct listener *listener);

#endif
