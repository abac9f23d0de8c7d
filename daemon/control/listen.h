/*
 * The socket that trainers connect to: systemd's if it passes us one, otherwise our own. A lock
 * file next to our own socket shows without a race whether its daemon is alive. It is removed when
 * the daemon ends.
 *
 * Embedded mode: a program that wants a private daemon takes the lock first, and passes it to the
 * daemon that it starts. So only one daemon starts, however many programs try. The daemon then
 * removes all files next to the socket: the lock, the log (PATH.log, if that is its stderr), and
 * the directory if it is empty.
 *
 * Faults are FAULT_ARGUMENT or a system call's, with field "socket".
 */
#ifndef TOKEND_LISTEN_H
#define TOKEND_LISTEN_H

#include "proto/fault.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>

struct config;

/*
 * Returns the socket to listen at: $TOKEND_SOCKET, the config's, WIRE_SOCKET, or @path, which it
 * fills in and whose directory it creates. Users other than root may not write to /run/tokend:
 * their daemons use a directory of the user, and log it. NULL with @fault: it could not.
 */
const char *listener_place(
	const struct config *config, char path[WIRE_SOCKET_BYTES], struct fault *fault);

struct listener {
	int fd;
	int lock_fd;	/* -1: the socket is systemd's */
	char path[108]; /* of our own socket; "": systemd's */
	char lock[128], log[128], parent[108];
	bool handed; /* the lock was taken by the process that started us */
	bool bound;  /* the file at path is ours */
};

/* Embedded mode: takes over @lock_fd, a lock on @path.lock. Call listener_open() with the same path
 * afterwards. */
bool listener_take(struct listener *listener, const char *path, int lock_fd, struct fault *fault);
/*
 * Listens. Fails, for example, if another tokend listens at @path. From now on clients can connect;
 * they wait in the queue until they are accepted. Call it before the shards are opened, which may
 * take minutes, so that trainers can distinguish a daemon that starts from none.
 */
bool listener_open(struct listener *listener, const char *path, struct fault *fault);
/* "…; what to do" for a socket or its lock at @path that cannot be created. */
void listener_explain(const char *path, int error, char *text, size_t room);
/* Removes the socket and the files next to it, for a process that ends before it serves.
 * Async-signal-safe. */
void listener_remove(const struct listener *listener);
/* Closes the socket and removes its files. Also for a listener that was taken and not opened, or is
 * closed already. */
void listener_close(struct listener *listener);

/*
 * closer.c closes the sockets of clients. A packet that waits in a socket may contain descriptors,
 * and the last close of a file may take for ever: a FUSE file system does not answer, or a TCP
 * socket lingers. It happens in the thread that receives the packet, or closes the socket. From
 * Linux 6.16 on the kernel refuses such packets, because listen.c asks for that. Older kernels do
 * not: then no packet with descriptors is received, and a thread of its own closes a socket that
 * has one.
 */

/* Has the kernel refuse packets with descriptors that are sent to the socket @fd, if it can.
 * Connections inherit that from a listening socket. */
void closer_refuse(int fd);
/* Does it refuse them, and has it done so since the socket exists? */
bool closer_refuses(int fd);
/* Closes @fd. If too many closes do not return, it stays open. */
void closer_close(int fd);

#endif
