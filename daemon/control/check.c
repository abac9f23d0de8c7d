#include "daemon/control/control.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	USUAL_MICRO_BATCH = 8, /* for the report */
	WAIT_MS = 1000,
};

/* ---- the plan ---- */

static void print_remark(void *none, const struct stream *s, bool doubt, const char *text)
{
	(void)none, (void)s, (void)doubt;
	printf("  %s\n", text);
}

/* How a dataset in a store is read, and why. */
static void print_fetch(const struct config *config, const struct dataset *d)
{
	static const char *const set[] = {
		[CONFIG_FETCH_WINDOW] = "fetch is window", [CONFIG_FETCH_PIECE] = "fetch is piece"};
	const char *why = d->config->fetch != CONFIG_FETCH_AUTO ? set[d->config->fetch]
			  : !config->cache_dir			? "there is no cache"
			  : d->piece ? "the cache has space for all of it"
				     : "the cache has no space for all of it";

	if (d->piece)
		printf("    read in pieces of %" PRIu32 " KiB: %s\n", d->piece >> 10, why);
	else if (d->bucket)
		printf("    read by window: %s\n", why);
}

static void print_dataset(const struct config *config, const struct dataset *d)
{
	const struct table *t = &d->table;
	bool slide = d->config->slide;
	uint64_t unserved = slide ? t->short_tokens : table_unserved(t);
	double percent = t->total_tokens ? 100.0 / (double)t->total_tokens : 0;

	printf("  %s: %" PRIu64 " shards, %" PRIu64 " tokens, %" PRIu64
	       " windows; never served: %" PRIu64 " tokens, %.3f %%",
		d->config->name, t->shards, t->total_tokens, t->windows, unserved,
		percent * (double)unserved);
	if (slide)
		printf("; left out by each epoch, others each time (slide): %" PRIu64 " tokens",
			t->tail_tokens);
	printf("\n");
	if (d->padding > 0)
		printf("    rows of %" PRIu64 " tokens, %.3f %% padding\n", d->sample_tokens,
			percent * (double)d->padding);
	if (d->column[0])
		printf("    column %s\n", d->column);
	print_fetch(config, d);
}

/* What the config's schedule and limits make of the mix. */
static void print_plan(const struct stream *s)
{
	const struct cursor *c = &s->begin;

	for (uint32_t d = 0; d < c->datasets; d++) {
		uint64_t position, unserved, most = c->dataset[d].max_epochs;

		if (cursor_unserved(c, d, &position, &unserved))
			printf("  %s: max_epochs %" PRIu64 ": ends at position %" PRIu64
			       "; %" PRIu64 " of its %" PRIu64 " × %" PRIu64
			       " windows are never served\n",
				c->dataset[d].name, most, position, unserved, most,
				c->order[d].windows);
		else if (most > 0)
			printf("  %s: max_epochs %" PRIu64 ": not reached before the stream ends\n",
				c->dataset[d].name, most);
	}
	if (s->config->steps > 0)
		printf("  schedule: %" PRIu32 " steps; %" PRIu32 " changes of the mix in all\n",
			s->config->steps, c->segments - 1);
}

static void print_stream(const struct config *config, const struct stream *s)
{
	printf("stream %s: windows of %" PRIu64 " + %" PRIu64 " tokens every %" PRIu64 ", %" PRIu32
	       " bytes a token\n",
		s->config->name, s->config->seq_len, s->config->extra, s->config->stride,
		s->token_bytes);
	for (uint32_t d = 0; d < s->config->datasets; d++)
		print_dataset(config, &s->dataset[d]);
	stream_notes(s, print_remark, NULL);
	print_plan(s);
}

/* Names the provider of each store's credentials. */
static void print_stores(struct stores *stores)
{
	struct store_status status;

	for (unsigned i = 0; stores && store_status(stores, i, &status); i++) {
		printf("store %s: credentials: %s", status.name,
			status.provider[0] ? status.provider : "none");
		if (status.expires_s != INT64_MAX)
			printf(", %" PRId64 " min left", status.expires_s / 60);
		printf("; %" PRIu64 " GETs\n", status.requests);
	}
}

/* ---- what would fail later ---- */

/* Reports shards whose samples showed tokens that are wrong, or not what the config says. */
static bool check_samples(const struct stream *s)
{
	bool fine = true;

	for (uint32_t i = 0; i < s->config->datasets; i++) {
		const struct dataset *d = &s->dataset[i];

		for (uint32_t r = 0; r < d->remarks; r++) {
			if (d->remark[r].kind != REMARK_WRONG)
				continue;
			log_line(LOG_ERROR, "%s:%d: streams.%s: %s", s->file, d->config->path_line,
				s->config->name, d->remark[r].text);
			fine = false;
		}
	}
	return fine;
}

/* Does a ring fit into memory:, of which @staging bytes are for the reader? */
static bool check_memory(const struct stream *s, const struct config *config, uint64_t staging)
{
	uint64_t left = config->memory_bytes > staging ? config->memory_bytes - staging : 0;
	uint64_t slots = 0, usual = 0;
	struct ring_geometry g;
	struct fault fault;

	if (!session_ring(s, 1, &slots, &g, &fault)) {
		log_line(LOG_ERROR, "%s:%d: streams.%s: %s", config->path, s->config->line,
			s->config->name, fault.text);
		return false;
	}
	if (g.meta_bytes + g.data_bytes > left) {
		log_line(LOG_ERROR,
			"%s: memory: %" PRIu64 " bytes are too few: a ring of stream %s with "
			"micro_batch 1 needs %" PRIu64 ", and buffers %" PRIu64
			"; set memory: %" PRIu64 "MiB or more",
			config->path, config->memory_bytes, s->config->name,
			g.meta_bytes + g.data_bytes, staging,
			((g.meta_bytes + g.data_bytes + staging) >> 20) + 1);
		return false;
	}
	if (session_ring(s, USUAL_MICRO_BATCH, &usual, &g, &fault))
		printf("  a ring of micro_batch %d: %" PRIu64 " slots, %" PRIu64
		       " bytes; memory: has room for %" PRIu64 "\n",
			USUAL_MICRO_BATCH, usual, g.meta_bytes + g.data_bytes,
			left / (g.meta_bytes + g.data_bytes));
	return true;
}

/* Reads the first window of @d, as a session would. False: @fault, with the shard's path. */
static bool read_window(const struct stream *s, struct reader *reader, uint32_t d, uint32_t *tokens,
	uint64_t n, struct fault *fault)
{
	const struct dataset *dataset = &s->dataset[d];
	const struct order_dataset *order = &s->begin.order[d];
	uint32_t documents;
	struct reader_read read = {
		.stream = s->slot,
		.dataset = dataset,
		.tokens = n,
		.to = tokens,
		.annotations = {.count = s->config->documents ? &documents : NULL,
			.start = s->config->documents ? tokens + n : NULL,
			.loss_mask = s->config->loss_mask ? (uint8_t *)(tokens + 2 * n) : NULL},
	};
	struct reader_done done;
	char path[PATH_MAX + 1];

	table_locate(&dataset->table, order, s->begin.seed, 0,
		order_window(order, s->begin.seed, 0, 0), &read.shard, &read.token);
	reader_queue(reader, &read);
	reader_commit(reader);
	while (reader_reap(reader, &done, 1, WAIT_MS) == 0)
		continue;
	if (!done.fault)
		return true;
	*fault = *done.fault;
	shard_list_path(&dataset->list, read.shard, path, sizeof(path));
	if (strncmp(fault->text, path, strlen(path)) == 0) /* a store's faults begin with it */
		return false;
	return fault_prefix(fault, "%s: token %" PRIu64 ": ", path, read.token);
}

/* Reads a window of each dataset that has some. */
static bool check_windows(const struct stream *s, struct reader *reader)
{
	uint64_t n = s->config->seq_len + s->config->extra;
	uint32_t *tokens = calloc(n, 4 + 4 + 1); /* and starts of documents, and the mask */
	uint32_t least = UINT32_MAX, most = 0, read = 0;
	struct fault fault;
	bool fine = tokens;

	if (!tokens)
		log_line(LOG_ERROR, "out of memory");
	for (uint32_t d = 0; fine && d < s->config->datasets; d++) {
		if (s->begin.order[d].windows == 0)
			continue;
		read++;
		fine = read_window(s, reader, d, tokens, n, &fault);
		if (!fine)
			log_line(LOG_ERROR, "%s:%d: streams.%s.datasets[%" PRIu32 "].path: %s",
				s->file, s->config->dataset[d].path_line, s->config->name, d,
				fault.text);
		for (uint64_t i = 0; fine && i < n; i++) {
			uint32_t token = s->token_bytes == 2 ? ((uint16_t *)tokens)[i] : tokens[i];

			least = token < least ? token : least;
			most = token > most ? token : most;
		}
	}
	if (fine)
		printf("  read %" PRIu32 " windows: tokens %" PRIu32 " to %" PRIu32 "%s\n", read,
			least, most,
			s->config->has_vocab ? "" : " (vocab: is not set, so any token is served)");
	free(tokens);
	return fine;
}

static bool check_state_dir(const struct config *config, const char *state_dir)
{
	if (config_may_write(state_dir))
		return true;
	log_line(LOG_ERROR,
		"%s: state_dir: uid %u cannot write to %s: %s; no snapshot could be saved; choose "
		"another directory, or run --check as the daemon's user",
		config->path, (unsigned)geteuid(), state_dir, strerror(errno));
	return false;
}

/* The default socket is systemd's, or the daemon chooses another one. */
static bool check_socket(const struct config *config)
{
	char directory[PATH_MAX];

	if (!config->has_socket || strcmp(config->socket, WIRE_SOCKET) == 0)
		return true;
	/* A daemon makes the directory, but not the one above. */
	snprintf(directory, sizeof(directory), "%s", config->socket);
	if (access(dirname(directory), W_OK | X_OK) == 0 ||
		(errno == ENOENT && access(dirname(directory), W_OK | X_OK) == 0))
		return true;
	log_line(LOG_ERROR, "%s: socket: uid %u cannot create %s: %s; %s, or choose another socket",
		config->path, (unsigned)geteuid(), config->socket, strerror(errno),
		errno == ENOENT ? "create its directory" : "have its owner allow that");
	return false;
}

int check_run(const struct catalog *catalog, struct stores *stores, const char *state_dir)
{
	const struct config *config = catalog->config;
	struct reading reading;
	struct fault fault;
	bool open = reading_open(catalog, stores, &reading, &fault), fine = open;

	if (!open)
		log_line(LOG_ERROR, "%s", fault.text);
	for (uint32_t i = 0; i < config->streams; i++) {
		const struct stream *s = &catalog->stream[i];

		print_stream(config, s);

		bool sound = check_samples(s);

		fine &= check_memory(s, config, reading.memory_bytes);
		/* Tokens that are known to be wrong would be reported twice. */
		fine &= sound && (!open || check_windows(s, reading.reader));
	}
	fine &= check_state_dir(config, state_dir);
	fine &= check_socket(config);
	if (!reading_fits_cache(config, &fault)) {
		log_line(LOG_ERROR, "%s", fault.text);
		fine = false;
	}
	reader_close(reading.reader);
	print_stores(stores);
	return fine ? 0 : 1;
}
