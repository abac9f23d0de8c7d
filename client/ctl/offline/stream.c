/* A stream of a config, opened without a daemon: the mixes of a run, and the tokens of windows. */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a stream ---- */

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream, bool all)
{
	char list[NEAREST_LIST_BYTES];
	struct fault fault;

	*s = (struct ctl_stream){.config = config_load(config, &fault)};
	if (s->config && !config_stream(s->config, stream))
		config_refuse(&fault, s->config->path, s->config->stream[0].line, "streams",
			"no stream is called %s; must be one of: %s", stream,
			config_list_streams(s->config, stream, list));
	else if (s->config)
		s->stores = ctl_stores_open(s->config, &fault);
	if (s->stores)
		s->catalog = catalog_open(s->config, s->stores, all ? NULL : stream, NULL, &fault);
	if (s->catalog) {
		s->stream = catalog_stream(s->catalog, stream);
		return true;
	}
	ctl_fail("%s", fault.text);
	ctl_stream_close(s);
	return false;
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
	static struct cursor *c; /* not freed: the process ends */
	bool good = (c = calloc(n, sizeof(*c))) || ctl_error(PHRASE_MEMORY);
	unsigned at = 0;

	for (unsigned i = 0; i < n && good; i++) {
		good = ctl_cursor_read(&c[i], paths[i], begin);
		if (good && c[i].next >= c[at].next)
			at = i;
	}
	for (unsigned i = 0; i < n && good; i++)
		if (!is_past(&c[i], &c[at]))
			good = ctl_error("%s is not on the past of %s; leave out cursors of "
					 "another run, and those from before a restart that gave "
					 "it another mix",
				paths[i], paths[at]);
	if (good)
		*furthest = c[at];
	return good;
}

/* Reads the cursor that tokend keeps of @run, in the first place of state that has one; otherwise
 * the file of that name. */
static bool read_run(struct cursor *cursor, const struct ctl_stream *s, const char *run)
{
	char path[PLACE_STATE_BYTES + 3 * LIMIT_NAME_BYTES] = "";

	for (unsigned i = 0; i < PLACE_STATES && wire_name_ok(run); i++) {
		char *state = config_state_place(s->config, i);

		if (state)
			snprintf(path, sizeof(path), "%s/%s/%s/" PLACE_RUN_CURSOR, state,
				s->stream->config->name, run);
		free(state);
		if (*path && access(path, F_OK) == 0)
			return ctl_cursor_read(cursor, path, &s->stream->begin);
	}
	if (access(run, F_OK) == 0)
		return ctl_cursor_read(cursor, run, &s->stream->begin);
	return ctl_error(
		"--run %s: no cursor of it in state_dir%s%s; tokend writes one there when a "
		"run attaches; or give the path of a cursor's file",
		run, *path ? ", the last place was " : "", path);
}

bool ctl_history_map(struct ctl_history *h, const struct ctl_stream *s)
{
	h->map = calloc(h->cursor.datasets, sizeof(*h->map));
	if (!h->map)
		return ctl_error(PHRASE_MEMORY);
	h->order = cursor_history(&h->cursor);
	stream_map(s->stream, &h->cursor, h->map);
	return true;
}

void ctl_history_close(struct ctl_history *h)
{
	cursor_free(&h->cursor);
	free(h->map);
}

bool ctl_history_has(const struct ctl_history *h, uint64_t from)
{
	uint64_t first = h->order.segment[0]->start, end = cursor_end(&h->cursor);

	if (from < first)
		return ctl_error("--from %" PRIu64 ": the mixes before position %" PRIu64
				 " are unknown; give a --cursor saved earlier",
			from, first);
	return from <= end || ctl_error("--from %" PRIu64 ": stream %s ends at position %" PRIu64,
				      from, h->cursor.stream, end);
}

int ctl_with_history(const struct ctl_arguments *a, bool all,
	int (*run)(const struct ctl_arguments *a, const struct ctl_stream *s,
		const struct ctl_history *h))
{
	struct ctl_stream s;
	struct ctl_history h = {0};
	const char *name = ctl_text(a, "run");
	int status = CTL_FAILED;
	bool good;

	if (name && a->listed > 0)
		return ctl_usage(a->command, "--run and --cursor exclude each other");
	if (!ctl_stream_open(&s, ctl_text(a, "config"), a->argument[0], all))
		return CTL_FAILED;
	if (name)
		good = read_run(&h.cursor, &s, name);
	else if (a->listed > 0)
		good = read_furthest(&h.cursor, a->list, a->listed, &s.stream->begin);
	else
		good = cursor_copy(&h.cursor, &s.stream->begin) || ctl_error(PHRASE_MEMORY);
	if (good && ctl_history_map(&h, &s))
		status = run(a, &s, &h);
	ctl_history_close(&h);
	ctl_stream_close(&s);
	return status;
}

/* ---- the tokens of windows ---- */

const struct dataset *ctl_window_locate(
	const struct ctl_window *w, uint64_t *shard, uint64_t *offset)
{
	const struct cursor *c = &w->of->cursor;
	const struct dataset *dataset = w->of->map[w->place.dataset];

	if (dataset)
		table_locate(&dataset->table, &c->order[w->place.dataset], c->seed, w->place.epoch,
			w->place.window, shard, offset);
	return dataset;
}

enum { OPEN_FILES = 64, BLOCK_WINDOWS = 1024, BLOCK_BYTES = 64 << 20 };

/* When a shard is opened it is compared with the one that was listed. Some stay open, because
 * windows come in any order. */
struct file {
	const struct dataset *dataset; /* NULL: the entry is free */
	uint64_t shard;
	struct shard *source;
	pthread_rwlock_t lock; /* read: while a thread reads the shard */
};

struct ctl_windows {
	struct frames *frames; /* decoded frames of all files */
	uint64_t window_bytes;
	bool stores; /* a dataset is in a store */
	struct file file[OPEN_FILES];

	ctl_windows_take *take;
	void *context;
	uint64_t n, most;     /* items that wait, at most */
	char *items, *tokens; /* [most] */
	size_t item_bytes;
};

struct ctl_windows *ctl_windows_open(
	const struct ctl_stream *s, size_t item_bytes, ctl_windows_take *take, void *context)
{
	static struct ctl_windows r[1];
	const struct cursor *c = &s->stream->begin;
	uint64_t fit;

	*r = (struct ctl_windows){.frames = frames_new(config_frames_budget(s->config)),
		.window_bytes = (c->seq_len + c->extra) * s->stream->token_bytes,
		.take = take,
		.context = context,
		.item_bytes = item_bytes};
	for (unsigned i = 0; i < OPEN_FILES; i++)
		pthread_rwlock_init(&r->file[i].lock, NULL);
	for (uint32_t d = 0; d < s->stream->config->datasets; d++)
		r->stores |= s->stream->dataset[d].bucket != NULL;
	fit = r->stores ? BLOCK_BYTES / r->window_bytes : 1;
	r->most = fit < 1 ? 1 : fit < BLOCK_WINDOWS ? fit : BLOCK_WINDOWS;
	r->items = malloc(r->most * item_bytes);
	r->tokens = malloc(r->most * r->window_bytes);
	if (r->frames && r->items && r->tokens)
		return r;
	ctl_fail(PHRASE_MEMORY);
	ctl_windows_close(r);
	return NULL;
}

/* The open shard, which stays until its lock is released. NULL: @fault. */
static struct file *acquire(struct ctl_windows *reader, const struct dataset *dataset,
	uint64_t shard, struct fault *fault)
{
	uint64_t number = (uintptr_t)dataset / sizeof(*dataset) + shard;
	struct file *file = &reader->file[number % OPEN_FILES];
	char path[PATH_MAX + 1];
	bool fine = true;

	while (fine) {
		pthread_rwlock_rdlock(&file->lock);
		if (file->dataset == dataset && file->shard == shard)
			return file;
		pthread_rwlock_unlock(&file->lock);
		pthread_rwlock_wrlock(&file->lock);
		if (file->dataset != dataset || file->shard != shard) {
			shard_close(file->source);
			shard_list_path(&dataset->list, shard, path, sizeof(path));
			file->source =
				dataset_open_shard(dataset, shard, path, -1, reader->frames, fault);
			file->dataset = file->source ? dataset : NULL;
			file->shard = shard;
			fine = file->source || fault_prefix(fault, "%s: ", path);
		}
		pthread_rwlock_unlock(&file->lock);
	}
	return NULL;
}

static const struct ctl_window *window_of(const struct ctl_windows *r, uint64_t i)
{
	return (const void *)(r->items + i * r->item_bytes);
}

/* Any thread. */
static bool read_window(const struct parallel *p, struct fault *fault)
{
	struct ctl_windows *reader = p->context;
	const struct ctl_window *w = window_of(reader, p->i);
	uint64_t shard, offset;

	if (!w->of)
		return true;

	const struct dataset *dataset = ctl_window_locate(w, &shard, &offset);

	if (!dataset)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"dataset %s: no longer in the config, so its tokens cannot be read",
			w->of->cursor.dataset[w->place.dataset].name);

	struct file *file = acquire(reader, dataset, shard, fault);

	if (!file)
		return false;
	bool fine = shard_read(file->source, offset, dataset->table.window_tokens,
		reader->tokens + p->i * reader->window_bytes, fault);

	pthread_rwlock_unlock(&file->lock);
	return fine ||
	       fault_prefix(fault, "dataset %s: shard %s at token %" PRIu64 ": ",
		       dataset->config->name, shard_list_name(&dataset->list, shard), offset);
}

/* ---- items ---- */

bool ctl_windows_flush(struct ctl_windows *r)
{
	struct fault fault;
	uint64_t n = r->n, good = parallel_for(n, r->stores ? CTL_GETS : 1, read_window, r, &fault);

	r->n = 0;
	for (uint64_t i = 0; i < good; i++)
		r->take(r->context, window_of(r, i),
			window_of(r, i)->of ? r->tokens + i * r->window_bytes : NULL);
	if (good < n)
		ctl_fail("%s", fault.text);
	return good == n;
}

bool ctl_windows_add(struct ctl_windows *r, const void *item)
{
	memcpy(r->items + r->n++ * r->item_bytes, item, r->item_bytes);
	return r->n < r->most || ctl_windows_flush(r);
}

void ctl_windows_close(struct ctl_windows *reader)
{
	if (!reader)
		return;
	for (unsigned i = 0; i < OPEN_FILES; i++)
		shard_close(reader->file[i].source);
	frames_free(reader->frames);
	free(reader->items);
	free(reader->tokens);
}
