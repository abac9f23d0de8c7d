/*
 * Closes the sockets of clients. A packet that waits in a socket may contain descriptors, and the
 * last close of a file may take for ever: a FUSE file system does not answer, or a TCP socket
 * lingers. It happens in the thread that receives the packet, or closes the socket. From Linux 6.16
 * on the kernel refuses such packets, because listen.c asks for that. Older kernels do not: then no
 * packet with descriptors is received, and keepers close the sockets. All on the loop.
 */
#ifndef TOKEND_CLOSER_H
#define TOKEND_CLOSER_H

#include "daemon/control/keeper.h"

enum { CLOSERS_MOST = 16 };

struct closers {
	uv_loop_t *loop; /* set by the caller */
	struct keeper *keeper[CLOSERS_MOST];
	unsigned n; /* another one starts when none of these answers */
};

/* Has the kernel refuse packets with descriptors that are sent to the socket @fd, if it can.
 * Connections inherit that from a listening socket. */
void closer_refuse(int fd);
/* Does it refuse them, and has it done so since the socket exists? */
bool closer_refuses(int fd);
/* Closes @fd soon. If no keeper answers, it stays open. */
void closer_close(struct closers *closers, int fd);
/* The loop is about to end. Nothing may be given after this. */
void closers_stop(struct closers *closers);
/* After the loop: frees the keepers. False: some do not answer. */
bool closers_end(struct closers *closers);

#endif
