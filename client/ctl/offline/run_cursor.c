#include "client/ctl/offline/run_cursor.h"

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/run_name.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void free_entries(struct dirent **entry, int n)
{
	for (int i = 0; i < n; i++)
		free(entry[i]);
	free(entry);
}

/* ---- the names of runs ---- */

struct names {
	char **name;
	unsigned n;
};

static int is_run(const struct dirent *e)
{
	return wire_name_ok(e->d_name);
}

/* Adds the runs that have a directory below @state. False: out of memory. */
static bool add_names(struct names *names, const char *state, const char *stream)
{
	const unsigned before = names->n;
	struct dirent **entry = NULL;
	char **more, *directory = NULL;
	int n;

	if (asprintf(&directory, "%s/%s", state, stream) < 0)
		return false;
	n = scandir(directory, &entry, is_run, NULL);
	free(directory);
	if (n <= 0) {
		free(n == 0 ? (void *)entry : NULL);
		return true;
	}
	more = realloc(names->name, (names->n + (size_t)n) * sizeof(*more));
	names->name = more ? more : names->name;
	for (int i = 0; more && i < n; i++) {
		unsigned at = 0;

		while (at < before && strcmp(names->name[at], entry[i]->d_name) != 0)
			at++;
		if (at == before && (names->name[names->n] = strdup(entry[i]->d_name)))
			names->n++;
	}
	free_entries(entry, n);
	return more;
}

static void forget(struct names *names)
{
	for (unsigned i = 0; i < names->n; i++)
		free(names->name[i]);
	free(names->name);
}

bool run_cursor_exists(const struct config *config, const char *stream, const char *run, bool whole)
{
	struct names names = {0};
	bool found = false;

	for (unsigned i = 0; i < PLACE_STATES; i++) {
		char *state = config_state_place(config, i);

		if (state)
			add_names(&names, state, stream);
		free(state);
	}
	for (unsigned i = 0; i < names.n && !found; i++)
		found = strncmp(names.name[i], run, strlen(run) + whole) == 0;
	forget(&names);
	return found;
}

/* The whole name of the run @typed, or @typed itself if no run begins with it. The caller frees it.
 * NULL after an error. */
static char *whole_name(const struct ctl_stream *s, char *const *state, const char *typed)
{
	struct names names = {0};
	bool done = true;
	char *whole = NULL;
	int match;

	for (unsigned i = 0; i < PLACE_STATES && done; i++)
		done = !state[i] || add_names(&names, state[i], s->stream->config->name);
	match = done ? ctl_run_match((const char *const *)names.name, names.n, typed) : 0;
	if (done && match != RUN_AMBIGUOUS)
		whole = strdup(match == RUN_UNKNOWN ? typed : names.name[match]);
	if (!done || (match != RUN_AMBIGUOUS && !whole))
		ctl_fail(PHRASE_MEMORY);
	forget(&names);
	return whole;
}

/* ---- its cursor ---- */

/* Looks in each of @state. The first one counts. */
static bool find(
	struct cursor *cursor, const struct ctl_stream *s, char *const *state, const char *run)
{
	char tried[2 * PLACE_STATE_BYTES] = "";
	size_t used = 0;

	for (unsigned i = 0; i < PLACE_STATES; i++) {
		char path[PLACE_STATE_BYTES + 3 * LIMIT_NAME_BYTES];

		if (!state[i])
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s/" PLACE_RUN_CURSOR, state[i],
			s->stream->config->name, run);
		if (access(path, F_OK) == 0)
			return ctl_cursor_read(cursor, path, &s->stream->begin);
		used += (size_t)snprintf(tried + used, sizeof(tried) - used, "%s%s/%s/%s",
			used ? ", " : "", state[i], s->stream->config->name, run);
		used = used < sizeof(tried) ? used : sizeof(tried) - 1;
	}
	ctl_fail("--run %s: no cursor of it in %s; tokend writes one there when a run attaches",
		run, tried);
	return false;
}

bool run_cursor_read(struct cursor *cursor, const struct ctl_stream *s, const char *run,
	char whole[LIMIT_NAME_BYTES + 1])
{
	char *state[PLACE_STATES], *name;
	bool found = false;

	memset(cursor, 0, sizeof(*cursor));
	if (!wire_name_ok(run)) {
		ctl_fail("--run %s: must be " PHRASE_NAME, run);
		return false;
	}
	for (unsigned i = 0; i < PLACE_STATES; i++)
		state[i] = config_state_place(s->config, i);
	name = whole_name(s, state, run);
	if (name) {
		snprintf(whole, LIMIT_NAME_BYTES + 1, "%s", name);
		found = find(cursor, s, state, name);
	}
	for (unsigned i = 0; i < PLACE_STATES; i++)
		free(state[i]);
	free(name);
	return found;
}
