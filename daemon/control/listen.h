/*
 * The socket that trainers connect to: systemd's if it gives us one, else our own. A lock file beside our own
 * tells a live daemon from a dead one's left-over without a race, and disappears with us.
 *
 * Embedded mode. A program that wants a private daemon takes the lock first and hands it over with the
 * process it starts, so that one starts however many try, and the lock is held exactly while a daemon starts
 * or serves. Whatever lies beside the socket then is ours to remove: lock, log (PATH.log, if that is our
 * stderr), and the directory if it is empty.
 */
#ifndef TOKEND_LISTEN_H
#define TOKEND_LISTEN_H

#include <stdbool.h>
#include <stddef.h>

struct listener {
	int fd;
	int lock_fd;	/* -1 where systemd owns the socket */
	char path[108]; /* of our own socket */
	char lock[128];
	bool handed; /* the lock was taken by who started us */
};

/* Takes over @lock_fd, the lock beside @path, before listener_open() of the same path. False with one line in
 * @why if it is not that. */
bool listener_take(struct listener *listener, const char *path, int lock_fd, char *why, size_t why_bytes);
/* False with one line in @why; another tokend that listens at @path is one reason. */
bool listener_open(struct listener *listener, const char *path, char *why, size_t why_bytes);
/* Also for one that was taken and not opened, or closed before. */
void listener_close(struct listener *listener);

#endif
