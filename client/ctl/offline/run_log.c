#include "client/ctl/offline/run_log.h"

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/run_name.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number in a name like 000001.cursor; 0 for other names. */
static uint64_t number_of(const char *name)
{
	size_t digits = strspn(name, "0123456789");
	char text[21];
	uint64_t number;

	if (digits < 6 || digits >= sizeof(text) || strcmp(name + digits, ".cursor") != 0)
		return 0;
	memcpy(text, name, digits);
	text[digits] = 0;
	return ctl_parse_number(text, &number) ? number : 0;
}

static int is_numbered(const struct dirent *e)
{
	return number_of(e->d_name) > 0;
}

static int by_number(const struct dirent **a, const struct dirent **b)
{
	uint64_t x = number_of((*a)->d_name), y = number_of((*b)->d_name);

	return x < y ? -1 : x > y;
}

static void free_entries(struct dirent **entry, int n)
{
	for (int i = 0; i < n; i++)
		free(entry[i]);
	free(entry);
}

void run_log_free(struct run_log *log)
{
	free_entries(log->entry, log->n);
	free(log->directory);
	log->entry = NULL;
	log->directory = NULL;
	log->n = 0;
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

bool run_log_exists(const struct config *config, const char *stream, const char *run, bool whole)
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

/* ---- the log ---- */

/* Looks in each of @state. The first directory with a log counts. */
static bool find(
	struct run_log *log, const struct ctl_stream *s, char *const *state, const char *run)
{
	char tried[2 * PLACE_STATE_BYTES] = "";
	size_t used = 0;

	for (unsigned i = 0; i < PLACE_STATES; i++) {
		if (!state[i])
			continue;
		if (asprintf(&log->directory, "%s/%s/%s/mixes", state[i], s->stream->config->name,
			    run) < 0) {
			log->directory = NULL;
			ctl_fail(PHRASE_MEMORY);
			return false;
		}
		log->n = scandir(log->directory, &log->entry, is_numbered, by_number);
		if (log->n > 0)
			return true;
		used += (size_t)snprintf(tried + used, sizeof(tried) - used, "%s%s (%s)",
			used ? ", " : "", log->directory,
			log->n < 0 ? strerror(errno) : "contains no *.cursor");
		used = used < sizeof(tried) ? used : sizeof(tried) - 1;
		if (log->n < 0)
			log->entry = NULL;
		log->n = 0;
		run_log_free(log);
	}
	ctl_fail("--run %s: no mix log in %s; tokend writes it there when a run attaches", run,
		tried);
	return false;
}

bool run_log_find(struct run_log *log, const struct ctl_stream *s, const char *run)
{
	char *state[PLACE_STATES], *whole;
	bool found = false;

	*log = (struct run_log){0};
	if (!wire_name_ok(run)) {
		ctl_fail("--run %s: must be " PHRASE_NAME, run);
		return false;
	}
	for (unsigned i = 0; i < PLACE_STATES; i++)
		state[i] = config_state_place(s->config, i);
	whole = whole_name(s, state, run);
	if (whole) {
		snprintf(log->run, sizeof(log->run), "%s", whole);
		found = find(log, s, state, whole);
	}
	for (unsigned i = 0; i < PLACE_STATES; i++)
		free(state[i]);
	free(whole);
	return found;
}
