/*
 * Queries to a daemon and its replies. Errors are printed.
 *
 * Each query carries a serial, and its replies carry the same one. A daemon of a release without
 * serials replies in the order of the queries; only answers to a request come in between.
 */
#ifndef TOKEND_CTL_TALK_H
#define TOKEND_CTL_TALK_H

#include "client/lib/connect.h"

struct ctl_link {
	int fd;
	char *socket;	      /* its path */
	uint64_t serial;      /* of the last query */
	struct packet packet; /* the last message */
};

enum ctl_heard {
	CTL_MESSAGE,
	CTL_TIMEOUT,
	CTL_OTHER, /* @other became readable */
	CTL_LOST,  /* the daemon is gone; the only one that is not printed */
	CTL_BAD,
};

typedef void ctl_each(void *context, const struct wire *w);

/* Connects and says hello. False after an error. @given and @config are ctl_socket()'s. */
bool ctl_connect(struct ctl_link *l, const char *given, const char *config);
void ctl_disconnect(struct ctl_link *l);
/* A descriptor that becomes readable when SIGINT, SIGTERM or SIGHUP arrives; they no longer end the
 * process. */
int ctl_signals(void);
/* The next message within @ms. @other: a descriptor to watch too, or -1. */
enum ctl_heard ctl_hear(struct ctl_link *l, int ms, int other);
/*
 * Sends @query and receives up to its reply of kind @reply, or the daemon's error. @each gets the
 * messages before it: other replies, and answers to a request. NULL: the first reply of any kind
 * ends it. False if there was none.
 */
bool ctl_exchange(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context);
/* The same, and an error of the daemon is an error. */
bool ctl_ask(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context);
/* Queries all sessions. The totals are then the last message; @each gets all before them. */
bool ctl_status_list(struct ctl_link *l, ctl_each *each, void *context);

#endif
