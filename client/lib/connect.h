/*
 * The link to a daemon: a connection that is checked and greeted, and packets in both directions.
 * Nothing here waits. What the packets mean is the caller's business.
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
	int fd[2]; /* received with the message. The reader sets those that it keeps to -1 */
	unsigned fds;
	uint8_t bytes[LIMIT_PACKET_BYTES];
};

enum link_peer { LINK_OPERATOR, LINK_TRAINER };

/*
 * Connects to the daemon at @path, checks that it may be ours (trust.h), and sends hello; its reply
 * is the next packet. A trainer's hello also says its host and its process. @buffer has
 * LIMIT_PACKET_BYTES. Returns a descriptor that does not block, or -1 with @fault: FAULT_PERMISSION
 * if someone else listens there, otherwise what failed, with errno (ENAMETOOLONG for a path that no
 * socket can have). A daemon that closes at once is no error: its reason can still be received.
 */
int link_open(const char *path, enum link_peer as, void *buffer, struct fault *fault);
/* Receives the next packet. Descriptors of the former one that were not kept are closed. */
enum link_event link_receive(int fd, struct packet *packet);
void packet_close(struct packet *packet);
/*
 * Sends a message; @buffer has LIMIT_PACKET_BYTES. On failure returns false, and @fault has the
 * errno: EMSGSIZE (FAULT_ARGUMENT) if the message is too long; EAGAIN, passing, while the daemon's
 * queue is full.
 */
bool link_send(int fd, const struct wire *wire, void *buffer, struct fault *fault);
/* Did sending fail because the peer closed? Its reason can still be received. */
bool link_closed(const struct fault *fault);
/* Sends a wake-up byte. If it fails that does not matter: a full queue wakes, too, and a dead
 * daemon is noticed when reading. */
void link_wake(int fd);

#endif
