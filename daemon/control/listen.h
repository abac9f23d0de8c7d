/*
 * The socket that trainers connect to: systemd's if it gives us one, else our own. A lock file beside our own
 * tells a live daemon from a dead one's left-over without a race, and disappears with us.
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
};

/* False with one line in @why; another tokend that listens at @path is one reason. */
bool listener_open(struct listener *listener, const char *path, char *why, size_t why_bytes);
void listener_close(struct listener *listener);

#endif
