/* Waits for a daemon's messages. Prints nothing. */
#ifndef TOKEND_CTL_HEAR_H
#define TOKEND_CTL_HEAR_H

#include "client/lib/link.h"

#include <poll.h>

enum ctl_heard {
	CTL_MESSAGE,
	CTL_TIMEOUT,
	CTL_OTHER, /* @other has one of its events */
	CTL_LOST,  /* the daemon closed the connection */
	CTL_BAD,   /* not a message of our protocol: packet->fault */
};

/* Waits up to @ms for the next message. @other: a descriptor to watch too, or -1, and poll()'s
 * events; POLLERR is always one of them. */
enum ctl_heard ctl_hear_packet(int fd, struct packet *packet, int ms, struct pollfd other);

#endif
