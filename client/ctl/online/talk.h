/*
 * Finds a daemon, sends it queries and receives its replies.
 *
 * Functions that fail print the error, or, if link->quiet is set, only keep it in link->why.
 */
#ifndef TOKEND_CTL_TALK_H
#define TOKEND_CTL_TALK_H

#include "client/ctl/common/ctl.h"
#include "client/lib/link.h"
#include "daemon/config/config.h"

#include <jansson.h>
#include <poll.h>

/* The commands that talk to a daemon. */
extern const struct ctl_command ctl_cache, ctl_cat, ctl_start, ctl_status, ctl_stop;
extern const struct ctl_command ctl_doctor, ctl_metrics, ctl_serve;
extern const struct ctl_command ctl_mix, ctl_skip, ctl_checkpoint, ctl_drain, ctl_rescale;

/* A connection to a daemon; all zero before the first use. */
struct ctl_link {
	int fd;
	char socket[WIRE_SOCKET_BYTES];
	uint64_t serial;      /* of the last query */
	struct packet packet; /* the last message */
	bool quiet;
	bool untrusted; /* somebody else's process listens there */
	bool absent;	/* no socket exists where a trainer looks */
	bool edited;	/* the daemon asked last read its file before it was edited */
	char why[LIMIT_TEXT_BYTES];

	/* Gets the answers to a request that come before a reply; or NULL. */
	bool (*answered)(void *context, const struct wire *w);
	void *context;
};

/* Prints or keeps an error. Always false. */
__attribute__((format(printf, 2, 3))) bool ctl_link_fail(
	struct ctl_link *l, const char *format, ...);

/* ---- find.c: which daemon ---- */

enum { CTL_DAEMONS = 256 }; /* others are not found */

struct ctl_daemons {
	struct ctl_daemon { /* it listens */
		enum place_from from;
		char path[WIRE_SOCKET_BYTES];
	} daemon[CTL_DAEMONS];
	unsigned n, shared;  /* the first ones are not private, nor of tokend@USER */
	bool usual;	     /* the first one is the one that a trainer finds */
	struct places named; /* where a trainer looks */
	uint64_t digest;     /* of the file's text; 0: none that can be read */
};

/* A note with the file and the daemon's socket, if link->edited. */
#define EDITED                                                                                     \
	"%s was edited after the daemon at %s read it, which still serves what it read; reload "   \
	"(SIGHUP) or stop it"

/* Finds the daemons that may serve the file @whole, or, if it is NULL, all that this user's clients
 * may use, also private ones. @config: what the file says, which must last as long as @found; NULL:
 * it cannot be read. */
void ctl_daemons_look(struct ctl_link *l, struct ctl_daemons *found, const struct config *config,
	const char *whole);
/* Asks number @daemon of @found for its status. True if it serves the file @whole, an absolute
 * path, also if it read that before it was edited (l->edited); if @whole is NULL, if it has
 * sessions of @stream and @run, which may be NULL. */
bool ctl_daemon_has(struct ctl_link *l, const struct ctl_daemons *found, unsigned daemon,
	const char *whole, const char *stream, const char *run);
/*
 * Writes the socket of the private daemon of @config, which is the file @whole. Its name depends on
 * the file's text: readers of an edited config must not find the daemon of the old one. Nor must
 * those in another container, with other data at the same paths. @exists: a pattern of all that
 * have the text, without a look at the data.
 */
void ctl_private_socket(
	const struct config *config, const char *whole, bool exists, char path[WIRE_SOCKET_BYTES]);
/*
 * Writes l->socket, of the daemon that is meant: by --socket, otherwise the daemon that serves the
 * file of -c, otherwise by $TOKEND_SOCKET. Without any of them it is the only daemon that is found;
 * of several, the one with sessions of a request's @stream and @run, or for other commands, where
 * both are NULL, the one that a trainer finds. False after an error, which says what was tried or
 * what the daemons serve.
 */
bool ctl_choose(
	struct ctl_link *l, const struct ctl_arguments *a, const char *stream, const char *run);

/* ---- talk.c: queries and replies ---- */

enum ctl_heard {
	CTL_MESSAGE,
	CTL_TIMEOUT,
	CTL_OTHER, /* @other has one of its events */
	CTL_LOST,  /* the daemon closed the connection */
	CTL_BAD,   /* not a message of our protocol, which is an error */
};

/* Connects to the daemon at @path and exchanges hellos. False after an error. */
bool ctl_open(struct ctl_link *l, const char *path);
void ctl_disconnect(struct ctl_link *l);
/* Blocks SIGINT, SIGTERM and SIGHUP, which then no longer end the process. Returns a descriptor
 * that becomes readable when one arrives. */
int ctl_signals(void);
/* Waits up to @ms for the next message. @other: a descriptor to watch too, or -1, and poll()'s
 * events; POLLERR is always one of them. */
enum ctl_heard ctl_hear(struct ctl_link *l, int ms, struct pollfd other);
/* Sends @query and receives messages up to its reply of kind @reply, which is then the last one.
 * Each query has a serial, and its replies have the same one. False after an error, also one of the
 * daemon. */
bool ctl_ask(struct ctl_link *l, struct wire *query, enum wire_op reply);
/* Queries the status, {"daemon": {…}, "sessions": […], …} (daemon/control/status.c), which the
 * caller frees. @public: without directories, pids and hosts. NULL after an error. */
json_t *ctl_ask_status(struct ctl_link *l, bool public);
/* The same on a connection of its own, to the daemon at @path. */
json_t *ctl_status_at(struct ctl_link *l, const char *path, bool public);
/* The same for the daemon that ctl_choose() finds, without a stream. */
json_t *ctl_status_of(struct ctl_link *l, const struct ctl_arguments *a, bool public);

/* Writes @status (NULL: the daemon does not answer) as text for Prometheus. @sessions: with series
 * for each session. */
void metrics_write(FILE *to, const json_t *status, bool sessions);

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
