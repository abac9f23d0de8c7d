#include "client/ctl/online/run.h"

#include "client/ctl/common/error.h"
#include "client/ctl/online/socket.h"
#include "proto/phrases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A run of the stream, at one of the daemons. */
struct served {
	unsigned daemon;
	char run[LIMIT_NAME_BYTES + 1];
};

struct survey {
	const char *stream;
	unsigned daemon; /* the one that is listed now */
	struct served *served;
	unsigned n;
	bool failed;
};

static void take(struct survey *s, const json_t *session)
{
	struct served served = {.daemon = s->daemon}, *more;

	if (strcmp(status_text(session, "stream"), s->stream) != 0)
		return;
	snprintf(served.run, sizeof(served.run), "%s", status_text(session, "run"));
	for (unsigned i = 0; i < s->n; i++)
		if (s->served[i].daemon == served.daemon &&
			strcmp(s->served[i].run, served.run) == 0)
			return;
	more = realloc(s->served, (s->n + 1) * sizeof(*more));
	s->failed |= !more;
	if (!more)
		return;
	s->served = more;
	s->served[s->n++] = served;
}

static void list(struct survey *s, struct ctl_link *l)
{
	json_t *status = ctl_ask_status(l, false, NULL, NULL), *session;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, session) take(s, session);
	json_decref(status);
	if (s->failed)
		ctl_fail(PHRASE_MEMORY);
}

/* Keeps the run of this name. */
static void narrow(struct survey *s, const char *run)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < s->n; i++)
		if (strcmp(s->served[i].run, run) == 0)
			s->served[kept++] = s->served[i];
	s->n = kept;
}

/* ---- several daemons ---- */

/* Prints the daemons to choose from: those of the survey, or all if it has none. */
static void refuse(
	const struct ctl_wanted *wanted, const struct ctl_sockets *found, const struct survey *s)
{
	char text[LIMIT_TEXT_BYTES] = "";
	size_t used = 0;

	for (unsigned d = 0; d < found->n && used < sizeof(text); d++) {
		const char *run = NULL;

		for (unsigned i = 0; i < s->n && !run; i++)
			run = s->served[i].daemon == d ? s->served[i].run : NULL;
		if (s->n > 0 && !run)
			continue;
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s--socket %s%s%s%s",
			used ? ", or " : "", found->place[d].path, run ? " (run " : "",
			run ? run : "", run ? ")" : "");
	}
	if (s->n > 0)
		ctl_fail("several daemons serve stream %s%s%s; add %s", wanted->stream,
			wanted->run ? " and run " : "", wanted->run ? wanted->run : "", text);
	else
		ctl_fail("none of the %u daemons here has a session of stream %s%s%s; add -c FILE, "
			 "or %s",
			found->n, wanted->stream, wanted->run ? " and run " : "",
			wanted->run ? wanted->run : "", text);
}

/* The number of the only daemon with this stream and run, or -1 after an error. */
static int survey(struct ctl_link *l, const struct ctl_wanted *wanted,
	const struct ctl_sockets *found, struct survey *s)
{
	for (s->daemon = 0; s->daemon < found->n; s->daemon++) {
		/* One that does not answer is reported, and serves nothing. */
		if (!ctl_connect(l, found->place[s->daemon].path, NULL))
			continue;
		list(s, l);
		ctl_disconnect(l);
		if (s->failed)
			return -1;
	}
	if (wanted->run)
		narrow(s, wanted->run);
	for (unsigned i = 0; i < s->n; i++)
		if (s->served[i].daemon != s->served[0].daemon) {
			refuse(wanted, found, s);
			return -1;
		}
	if (s->n > 0)
		return (int)s->served[0].daemon;
	refuse(wanted, found, s);
	return -1;
}

static bool connect_any(struct ctl_link *l, const struct ctl_wanted *wanted)
{
	struct survey s = {.stream = wanted->stream};
	struct ctl_sockets found;
	int chosen = 0;

	if (!ctl_sockets_find(&found))
		return false;
	if (found.n > 1)
		chosen = survey(l, wanted, &found, &s);
	bool done = chosen >= 0 && ctl_connect(l, found.place[chosen].path, NULL);

	free(s.served);
	ctl_sockets_free(&found);
	return done;
}

bool ctl_connect_run(struct ctl_link *l, const struct ctl_wanted *wanted)
{
	return ctl_socket_named(wanted->socket, wanted->config)
		       ? ctl_connect(l, wanted->socket, wanted->config)
		       : connect_any(l, wanted);
}
