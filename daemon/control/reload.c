#include "daemon/control/reload.h"

#include "daemon/config/refuse.h"
#include "daemon/control/announce.h"
#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "daemon/control/notify.h"
#include "daemon/control/plan.h"
#include "daemon/control/reading.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LATE_MS = 5000 };

/* ---- in the pool ---- */

static bool fits_dataset(const struct reader_options *reading, const struct dataset *d,
	const char *path, struct fault *fault)
{
	if (d->frame_bytes > 0 && reading->frames_bytes == 0)
		return config_refuse(fault, path, d->config->line, d->config->name, FAULT_NO_INDEX,
			"is compressed; the first compressed dataset needs a restart, because a "
			"quarter of memory: is reserved for it");
	if (d->objects && reading->store_depth == 0)
		return config_refuse(fault, path, d->config->line, d->config->name, FAULT_NO_INDEX,
			"is in a store; the first dataset in a store needs a restart, because an "
			"eighth of memory: is reserved for it");
	return true;
}

/* Is the reader prepared for the datasets? It was sized for those of the start. */
static bool fits_reader(
	const struct reader_options *reading, const struct catalog *catalog, struct fault *fault)
{
	for (uint32_t i = 0; reading && i < catalog->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];
		uint64_t window = (s->config->seq_len + s->config->extra) * s->token_bytes;

		if (reading->direct && window > reading->largest_window_bytes)
			return config_refuse(fault, catalog->config->path, s->config->line,
				s->config->name, FAULT_NO_INDEX,
				"a window has %" PRIu64
				" bytes; with direct: true, windows of more "
				"than %" PRIu64 " bytes need a restart",
				window, reading->largest_window_bytes);
		for (uint32_t d = 0; d < s->config->datasets; d++)
			if (!fits_dataset(reading, &s->dataset[d], catalog->config->path, fault))
				return false;
	}
	return !reading || reading_fits_stores(catalog, fault);
}

/* Gives @config the values of keys that keep them. */
static bool keep_values(struct config *config, const struct config *began)
{
	char *state_dir = strdup(began->state_dir);

	if (!state_dir)
		return false;
	free(config->state_dir);
	config->state_dir = state_dir;
	config->memory_bytes = began->memory_bytes;
	config->memory_capped = began->memory_capped;
	return true;
}

static void reload_work(uv_work_t *work)
{
	struct reload *r = work->data;

	r->config = config_load(r->began->path, &r->fault);
	if (!r->config)
		return;
	if (!keep_values(r->config, r->began)) {
		fault_memory(&r->fault);
		return;
	}
	r->catalog = catalog_open(r->config, r->control->stores.stores, &r->fault);
	if (r->catalog && fits_reader(r->reading, r->catalog, &r->fault))
		return;
	catalog_free(r->catalog);
	r->catalog = NULL;
}

/* ---- on the loop ---- */

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_stores(const struct config *a, const struct config *b)
{
	if (a->stores != b->stores)
		return false;
	for (uint32_t i = 0; i < a->stores; i++) {
		const struct config_store *x = &a->store[i], *y = &b->store[i];

		if (strcmp(x->name, y->name) != 0 || !same_text(x->endpoint, y->endpoint) ||
			!same_text(x->region, y->region) || !same_text(x->profile, y->profile) ||
			!same_text(x->token_file, y->token_file) ||
			!same_text(x->query_file, y->query_file) || !same_text(x->ca, y->ca) ||
			x->style != y->style || x->anonymous != y->anonymous ||
			x->requester_pays != y->requester_pays || x->connections != y->connections)
			return false;
	}
	return true;
}

/* Writes the names of keys that need a restart, "memory:, io:", to @keys. */
static void name_kept(
	const struct config *config, const struct config *began, char *keys, size_t keys_bytes)
{
	const struct {
		const char *key;
		bool same;
	} kept[] = {
		{"socket:", same_text(config->socket, began->socket)},
		{"state_dir:", same_text(config->state_dir_written, began->state_dir_written)},
		{"memory:", config->memory_written == began->memory_written},
		{"io:", config->io == began->io},
		{"direct:", config->direct == began->direct},
		{"stores:", same_stores(config, began)},
		{"cache:", same_text(config->cache_dir, began->cache_dir) &&
				   config->cache_bytes == began->cache_bytes},
	};
	size_t n = 0;

	keys[0] = 0;
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]) && n < keys_bytes; i++) {
		if (kept[i].same)
			continue;
		log_line(LOG_WARNING,
			"%s: %s needs a restart; the value of the start is kept until then",
			config->path, kept[i].key);
		n += (size_t)snprintf(keys + n, keys_bytes - n, "%s%s", n ? ", " : "", kept[i].key);
	}
}

struct difference {
	unsigned added, changed, removed;
};

static bool same_stream(const struct stream *a, const struct stream *b)
{
	return a->token_bytes == b->token_bytes && a->begin_length == b->begin_length &&
	       memcmp(a->begin_bytes, b->begin_bytes, a->begin_length) == 0;
}

/* Logs what is new in each stream. */
static struct difference compare(const struct catalog *was, const struct catalog *is)
{
	struct difference d = {0};

	for (uint32_t i = 0; i < is->config->streams; i++) {
		const struct stream *now = &is->stream[i];
		const struct stream *before = catalog_stream(was, now->config->name);

		if (before && same_stream(before, now))
			continue;
		d.added += !before;
		d.changed += before != NULL;
		log_line(LOG_NOTE, "stream %s: %s", now->config->name,
			before ? "changed; its present sessions keep what they attached to"
			       : "new");
		plan_log(now);
	}
	for (uint32_t i = 0; i < was->config->streams; i++) {
		const char *name = was->config->stream[i].name;

		if (catalog_stream(is, name))
			continue;
		d.removed++;
		log_line(LOG_NOTE, "stream %s: removed; its present sessions keep it", name);
	}
	return d;
}

/* Is it the first session of its run? */
static bool speaks_for_run(const struct session *s)
{
	const struct session *other;

	for (uint32_t id = 0; id < s->id; id++) {
		other = s->control->sessions.of[id];
		if (session_is_live(other) && other->stream->slot == s->stream->slot &&
			strcmp(other->run, s->run) == 0)
			return false;
	}
	return true;
}

/* Warns of runs that this config would refuse: they end at their next seek or reconnect. */
static void warn_runs(const struct control *control)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];
		struct fault fault;

		if (!session_is_live(s) || !speaks_for_run(s))
			continue;

		const char *name = s->stream->config->name;
		const struct stream *now = catalog_stream(control->catalog, name);

		if (!now)
			fault_set(&fault, FAULT_CURSOR, "", "the stream is removed");
		else if (cursor_belongs(feed_cursor(s->feed), &now->begin, &fault))
			continue;
		log_line(LOG_WARNING,
			"stream %s: run %s goes on, but could not attach again: %s%s%s; restore "
			"the "
			"former config and shards before its trainers seek or reconnect",
			name, s->run, fault.field, fault.field[0] ? ": " : "", fault.text);
	}
}

static void log_reloaded(const struct reload *r, const struct catalog *was)
{
	const struct config *config = r->control->config;
	struct difference d = compare(was, r->control->catalog);
	char keys[64], kept[128] = "";

	warn_runs(r->control);
	name_kept(config, r->began, keys, sizeof(keys));
	if (keys[0])
		snprintf(kept, sizeof(kept), "; %s as before, until a restart", keys);
	log_line(LOG_NOTE,
		"%s was read again: digest %016" PRIx64 ", %" PRIu32
		" streams: %u new, %u changed, %u removed%s",
		config->path, config->digest, config->streams, d.added, d.changed, d.removed, kept);
}

/* Reserves memory for the first dataset whose shards have indexes. False: r->fault. */
static bool reserve_indexes(struct reload *r)
{
	struct control *control = r->control;
	struct sessions *all = &control->sessions;
	uint64_t bytes = reading_indexes(r->catalog), limit = control->config->memory_bytes;

	if (bytes == 0 || r->indexed || !r->reading || r->reading->indexes_bytes > 0)
		return true;
	if (all->memory_bytes + bytes > limit)
		return fault_set(&r->fault, FAULT_ARGUMENT, "memory",
			"%s: memory: the indexes of shards need %" PRIu64 " of its %" PRIu64
			" bytes, but rings leave only %" PRIu64
			"; read the config again with fewer sessions, or restart tokend with more "
			"memory",
			r->config->path, bytes, limit,
			limit > all->memory_bytes ? limit - all->memory_bytes : 0);
	all->staging_bytes += bytes;
	all->memory_bytes += bytes;
	reader_index_memory(control->reader, bytes);
	return r->indexed = true;
}

/* False: r->fault. */
static bool switch_over(struct reload *r)
{
	struct control *control = r->control;
	struct generation *generation;

	if (!generations_place(&control->generations, r->catalog, &r->fault))
		return false;
	if (!counts_join(&control->counts, r->catalog))
		return fault_memory(&r->fault);
	if (!reserve_indexes(r))
		return false;
	generation = calloc(1, sizeof(*generation));
	if (!generation)
		return fault_memory(&r->fault);
	*generation = (struct generation){.config = r->config, .catalog = r->catalog};
	r->config = NULL;
	r->catalog = NULL;
	generations_add(&control->generations, generation);
	control->catalog = generation->catalog;
	control->config = generation->config;
	r->on_config(r->context, control->config);
	return true;
}

static void refuse(struct reload *r)
{
	snprintf(r->refused, sizeof(r->refused), "%s", fault_line(r->fault.text));
	r->control->counts.reloads_failed++;
	r->control->counts.reload_failed = true;
	log_line(LOG_ERROR, "%s; the daemon keeps the config that it has", r->refused);
}

static void end(struct reload *r)
{
	const struct catalog *was = r->control->catalog;

	if (r->catalog && switch_over(r)) {
		r->control->counts.reloads++;
		r->control->counts.reload_s = time(NULL);
		r->control->counts.reload_failed = false;
		r->refused[0] = 0;
		memset(r->control->comparing.stopped, 0, sizeof(r->control->comparing.stopped));
		log_reloaded(r, was);
	} else {
		refuse(r);
	}
	announce_state(r->control, true);
}

static void reload_done(uv_work_t *work, int status)
{
	struct reload *r = work->data;

	(void)status;
	r->running = false;
	if (!r->stopped)
		end(r);
	catalog_free(r->catalog);
	config_free(r->config);
	r->catalog = NULL;
	r->config = NULL;
	if (r->again && !r->stopped)
		reload_begin(r);
}

void reload_begin(struct reload *r)
{
	struct timespec now;
	char state[64];

	r->again = r->running;
	if (r->running)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
		(uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
	notify(state);
	r->running = true;
	r->late = false;
	r->since_ms = uv_now(r->control->loop);
	r->work.data = r;
	uv_queue_work(r->control->loop, &r->work, reload_work, reload_done);
}

void reload_clock(struct reload *r)
{
	if (!r->running || r->late || uv_now(r->control->loop) - r->since_ms < LATE_MS)
		return;
	r->late = true;
	log_line(LOG_WARNING,
		"%s: reading it again has not ended after %d s; check the storage of its datasets; "
		"until then the daemon keeps the config that it has",
		r->began->path, LATE_MS / 1000);
}
