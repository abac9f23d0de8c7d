/*
 * The socket that trainers connect to: systemd's if it gives us one, else our own. A lock file
 * beside our own tells a live daemon from a dead one's left-over without a race, and disappears
 * with us.
 *
 * Embedded mode. A program that wants a private daemon takes the lock first and hands it over with
 * the process it starts, so that one starts however many try, and the lock is held exactly while a
 * daemon starts or serves. Whatever lies beside the socket then is ours to remove: lock, log
 * (PATH.log, if that is our stderr), and the directory if it is empty.
 */
#ifndef TOKEND_LISTEN_H
#define TOKEND_LISTEN_H

#include <stdbool.h>
#include <stddef.h>

struct listener {
	int fd;
	int lock_fd;	/* -1 where systemd owns the socket */
	char path[108]; /* of our own socket */
	char lock[128], log[128], parent[108];
	bool handed; /* the lock was taken by who started us */
	bool bound;  /* the file at path is ours */
};

/* Takes over @lock_fd, the lock beside @path, before listener_open() of the same path. False with
 * one line in
 * @why if it is not that. */
bool listener_take(
	struct listener *listener, const char *path, int lock_fd, char *why, size_t why_bytes);
/*
 * False with one line in @why; another tokend that listens at @path is one reason. From here on
 * clients can connect, and wait in the queue until they are accepted: it is called before the
 * shards are opened, which may take minutes, so that a trainer knows a daemon that starts from
 * none.
 */
bool listener_open(struct listener *listener, const char *path, char *why, size_t why_bytes);
/*
 * Until somebody else handles SIGTERM and SIGINT they remove what lies beside the socket, and end
 * the process with 0: whoever can connect can also stop us, and then nothing is left behind.
 * @listener must stay there.
 */
void listener_end_on_signals(const struct listener *listener);
/* Also for one that was taken and not opened, or closed before. */
void listener_close(struct listener *listener);

#endif
