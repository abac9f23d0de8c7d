/*
 * Sends queries to a daemon and receives its replies. Errors are printed.
 *
 * Each query has a serial, and its replies have the same one. Answers to a request have its serial,
 * and may come in between.
 */
#ifndef TOKEND_CTL_TALK_H
#define TOKEND_CTL_TALK_H

#include "client/ctl/online/hear.h"

#include <jansson.h>

struct ctl_link {
	int fd;
	char *socket;	      /* its path */
	uint64_t serial;      /* of the last query */
	struct packet packet; /* the last message */
};

typedef void ctl_each(void *context, const struct wire *w);

/* Connects and exchanges hellos. False after an error. @given and @config are those of
 * ctl_socket().
 */
bool ctl_connect(struct ctl_link *l, const char *given, const char *config);
void ctl_disconnect(struct ctl_link *l);
/* Blocks SIGINT, SIGTERM and SIGHUP, which then no longer end the process. Returns a descriptor
 * that becomes readable when one arrives. */
int ctl_signals(void);
/* Waits up to @ms for the next message. @other: a descriptor to be readable too, or -1. Prints an
 * error for CTL_BAD. */
enum ctl_heard ctl_hear(struct ctl_link *l, int ms, int other);
/*
 * Sends @query and receives messages up to its reply of kind @reply or the daemon's error, which is
 * then the last message. @each gets the messages before it: other replies, and answers to a
 * request. False after an error.
 */
bool ctl_exchange(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context);
/* Like ctl_exchange(), but also prints the daemon's error and returns false for it. */
bool ctl_ask(
	struct ctl_link *l, struct wire *query, enum wire_op reply, ctl_each *each, void *context);
/*
 * Queries the status, {"daemon": {…}, "sessions": […], …} (daemon/control/status.c), which the
 * caller frees. @each gets answers to a request that come in between. @public: without directories,
 * pids and hosts. NULL after an error.
 */
json_t *ctl_ask_status(struct ctl_link *l, bool public, ctl_each *each, void *context);

/* A member of an item of the status; 0 or "" if it is absent. */
static inline uint64_t status_number(const json_t *item, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(item, name));
}

static inline const char *status_text(const json_t *item, const char *name)
{
	const char *text = json_string_value(json_object_get(item, name));

	return text ? text : "";
}

#endif
