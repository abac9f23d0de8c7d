/*
 * The socket under a session: packets in, packets out, never blocking. What they mean is attach.c's
 * business.
 */
#ifndef TOKEND_CONNECT_H
#define TOKEND_CONNECT_H

#include "proto/wire.h"

enum link_event {
	LINK_NOTHING, /* no packet is waiting */
	LINK_WAKE,    /* a wake-up byte */
	LINK_MESSAGE, /* packet->wire */
	LINK_CLOSED,  /* the daemon is gone */
	LINK_FAULT,   /* packet->fault (FAULT_PROTOCOL): the peer does not speak our protocol */
};

struct packet {
	struct wire wire;
	struct fault fault;
	int fd[2]; /* received with the message; the reader's, who sets those it keeps to -1 */
	unsigned fds;
	uint8_t bytes[LIMIT_PACKET_BYTES];
};

/* A descriptor, or -errno (-ENAMETOOLONG for a path that no socket can have). */
int link_open(const char *path);
/* The next packet. Descriptors of a former one that were not taken are closed. */
enum link_event link_receive(int fd, struct packet *packet);
void packet_close(struct packet *packet);
/* 0, or -errno; -EAGAIN where the daemon's queue is full. @buffer has LIMIT_PACKET_BYTES. */
int link_send(int fd, const struct wire *wire, void *buffer);
/* A wake-up byte. Its fate does not matter: a full queue wakes too, and a dead daemon is seen when
 * reading.
 */
void link_wake(int fd);

#endif
