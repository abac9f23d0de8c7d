/*
 * Queries to a daemon and its replies. Errors are printed.
 */
#ifndef TOKEND_CTL_TALK_H
#define TOKEND_CTL_TALK_H

#include "client/lib/connect.h"

enum ctl_heard {
	CTL_MESSAGE,
	CTL_TIMEOUT,
	CTL_OTHER, /* @other became readable */
	CTL_LOST,  /* the daemon is gone; the only one that is not printed */
	CTL_BAD,
};

/* Connects and says hello. -1 after an error. @given and @config are ctl_socket()'s; *@socket, what
 * that returned, is the caller's. */
int ctl_connect(const char *given, const char *config, char **socket, struct packet *packet);
/* A descriptor that becomes readable when SIGINT, SIGTERM or SIGHUP arrives; they no longer end the
 * process. */
int ctl_signals(void);
/* The next message within @ms. @other: a descriptor to watch too, or -1. */
enum ctl_heard ctl_hear(int fd, struct packet *packet, int ms, int other);
/* The next message; false after an error. */
bool ctl_receive(int fd, struct packet *packet);
/* Sends @query and receives the reply; one that reports an error is an error. */
bool ctl_ask(int fd, const struct wire *query, struct packet *packet);
/* Queries all sessions. @each gets every message up to the totals, which are then in @packet. */
bool ctl_status_list(int fd, struct packet *packet,
	void (*each)(void *context, const struct wire *w), void *context);

#endif
