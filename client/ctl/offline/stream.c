#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a stream ---- */

static bool open_stream(struct ctl_stream *s, const char *config, const char *stream, bool all)
{
	struct fault fault;

	*s = (struct ctl_stream){.config = config_load(config, &fault)};
	if (s->config && !config_stream(s->config, stream))
		all = false; /* it is refused */
	if (s->config)
		s->stores = ctl_stores_open(s->config, &fault);
	if (s->stores)
		s->catalog = all ? catalog_open(s->config, s->stores, &fault)
				 : catalog_open_stream(s->config, s->stores, stream, &fault);
	if (s->catalog) {
		s->stream = catalog_stream(s->catalog, stream);
		return true;
	}
	ctl_fail("%s", fault.text);
	ctl_stream_close(s);
	return false;
}

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream)
{
	return open_stream(s, config, stream, false);
}

void ctl_stream_close(struct ctl_stream *s)
{
	catalog_free(s->catalog);
	store_close(s->stores);
	config_free(s->config);
	*s = (struct ctl_stream){0};
}

/* ---- the mixes of a run ---- */

bool ctl_same_segment(const struct order_segment *a, const struct order_segment *b)
{
	uint32_t n = a->datasets;

	return a->start == b->start && n == b->datasets &&
	       memcmp(a->units, b->units, n * sizeof(*a->units)) == 0 &&
	       memcmp(a->base, b->base, n * sizeof(*a->base)) == 0 &&
	       memcmp(a->phase, b->phase, a->padded * sizeof(*a->phase)) == 0;
}

/* Is the mix that is current in @early, one that @late has had? */
static bool is_past(const struct cursor *early, const struct cursor *late)
{
	const struct order_segment *now = cursor_now(early);

	for (uint32_t i = 0; i < late->segments; i++)
		if (ctl_same_segment(late->segment[i], now))
			return true;
	return now->start < late->segment[0]->start;
}

/* Reads the cursor of @paths that reaches furthest, the last of several. */
static bool read_furthest(
	struct cursor *furthest, const char *const *paths, unsigned n, const struct cursor *begin)
{
	struct cursor *c = calloc(n, sizeof(*c));
	bool good = c || ctl_error(PHRASE_MEMORY);
	unsigned at = 0;

	for (unsigned i = 0; i < n && good; i++) {
		good = ctl_cursor_read(&c[i], paths[i], begin);
		if (good && c[i].next >= c[at].next)
			at = i;
	}
	for (unsigned i = 0; i < n && good; i++)
		if (!is_past(&c[i], &c[at]))
			good = ctl_error(
				"%s is not on the past of %s; leave out cursors of another "
				"run, and those from before a restart that gave it another "
				"mix",
				paths[i], paths[at]);
	if (good) {
		*furthest = c[at];
		c[at] = (struct cursor){0};
	}
	for (unsigned i = 0; c && i < n; i++)
		cursor_free(&c[i]);
	free(c);
	return good;
}

/* Looks for the cursor that tokend keeps of @run in each place of state. The first one counts. */
static bool read_run(struct cursor *cursor, const struct ctl_stream *s, const char *run)
{
	const char *stream = s->stream->config->name;
	char path[PLACE_STATE_BYTES + 3 * LIMIT_NAME_BYTES], tried[2 * PLACE_STATE_BYTES] = "";

	for (unsigned i = 0; i < PLACE_STATES && wire_name_ok(run); i++) {
		char *state = config_state_place(s->config, i);
		size_t used = strlen(tried);

		if (!state)
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s/" PLACE_RUN_CURSOR, state, stream, run);
		snprintf(tried + used, sizeof(tried) - used, "%s%s/%s/%s", used ? ", " : "", state,
			stream, run);
		free(state);
		if (access(path, F_OK) == 0)
			return ctl_cursor_read(cursor, path, &s->stream->begin);
	}
	if (access(run, F_OK) == 0)
		return ctl_cursor_read(cursor, run, &s->stream->begin);
	if (!tried[0])
		ctl_fail("--run %s: must be " PHRASE_NAME ", or a cursor's file", run);
	else
		ctl_fail("--run %s: no cursor of it in %s; tokend writes one there when a run "
			 "attaches",
			run, tried);
	return false;
}

bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run)
{
	bool good;

	*h = (struct ctl_history){0};
	if (run)
		good = read_run(&h->cursor, s, run);
	else if (n > 0)
		good = read_furthest(&h->cursor, paths, n, &s->stream->begin);
	else
		good = cursor_copy(&h->cursor, &s->stream->begin) || ctl_error(PHRASE_MEMORY);
	if (good)
		h->order = cursor_history(&h->cursor);
	else
		ctl_history_close(h);
	return good;
}

void ctl_history_close(struct ctl_history *h)
{
	cursor_free(&h->cursor);
	*h = (struct ctl_history){0};
}

bool ctl_history_has(const struct ctl_history *h, uint64_t from)
{
	uint64_t first = h->order.segment[0]->start, end = cursor_end(&h->cursor);

	if (from < first)
		ctl_fail("--from %" PRIu64 ": the mixes before position %" PRIu64
			 " are unknown; give a --cursor saved earlier",
			from, first);
	else if (from > end)
		ctl_fail("--from %" PRIu64 ": stream %s ends at position %" PRIu64, from,
			h->cursor.stream, end);
	return from >= first && from <= end;
}

int ctl_with_history(const struct ctl_arguments *a, bool all,
	int (*run)(const struct ctl_arguments *a, const struct ctl_stream *s,
		const struct ctl_history *h))
{
	struct ctl_stream s;
	struct ctl_history h;
	const struct ctl_value *files = &a->value[CTL_HISTORY_FILES];
	int status = CTL_FAILED;

	if (ctl_given(a, CTL_HISTORY_NAME) && ctl_given(a, CTL_HISTORY_FILES))
		return ctl_usage(a->command, "--run and --cursor exclude each other");
	if (!open_stream(&s, ctl_text(a, CTL_HISTORY_CONFIG), a->argument[0], all))
		return CTL_FAILED;
	if (ctl_history_open(&h, &s, files->list, files->count, ctl_text(a, CTL_HISTORY_NAME))) {
		status = run(a, &s, &h);
		ctl_history_close(&h);
	}
	ctl_stream_close(&s);
	return status;
}
