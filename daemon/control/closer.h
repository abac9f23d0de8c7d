/*
 * Closes the sockets of clients. A packet that waits in a socket may contain descriptors, and the
 * last close of a file may take for ever: a FUSE file system does not answer, or a TCP socket
 * lingers. It happens in the thread that receives the packet, or closes the socket. From Linux 6.16
 * on the kernel refuses such packets, because listen.c asks for that. Older kernels do not: then no
 * packet with descriptors is received, and a thread of its own closes a socket that has one.
 */
#ifndef TOKEND_CLOSER_H
#define TOKEND_CLOSER_H

#include <stdbool.h>

/* Has the kernel refuse packets with descriptors that are sent to the socket @fd, if it can.
 * Connections inherit that from a listening socket. */
void closer_refuse(int fd);
/* Does it refuse them, and has it done so since the socket exists? */
bool closer_refuses(int fd);
/* Closes @fd. If too many closes do not return, it stays open. */
void closer_close(int fd);

#endif
