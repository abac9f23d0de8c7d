#include "daemon/catalog/opening.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a stream ---- */

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* The line of the config that a cursor's fault is about. */
static int line_of(const struct config_stream *config, const struct fault *cause)
{
	char dataset[sizeof(cause->field)];

	if (begins(cause->field, "schedule"))
		return cause->index >= 0 && (uint32_t)cause->index < config->steps
			       ? config->step_line[cause->index]
			       : config->schedule_line;
	for (uint32_t i = 0; i < config->datasets; i++) {
		const struct config_dataset *d = &config->dataset[i];

		if (strcmp(cause->field, "max_epochs") == 0 && d->max_epochs > 0)
			return d->max_epochs_line;
		snprintf(dataset, sizeof(dataset), "dataset %.48s: ", d->name);
		if (begins(cause->field, dataset))
			return strstr(cause->field, ": max_epochs") ? d->max_epochs_line
								    : d->weight_line;
	}
	return config->line;
}

/*
 * Reports @cause, a fault of a cursor made from the config, as config_refuse(): "FILE:LINE:
 * streams.NAME: FIELD: TEXT". Always false.
 */
static bool refuse_cursor(
	const struct stream *stream, const struct fault *cause, struct fault *fault)
{
	char field[sizeof(fault->field) + LIMIT_NAME_BYTES + 16];

	snprintf(field, sizeof(field), "streams.%s: %s", stream->config->name, cause->field);
	config_refuse(
		fault, stream->file, line_of(stream->config, cause), field, "%s", cause->text);
	if (cause->code == FAULT_MEMORY)
		fault->code = FAULT_MEMORY;
	return false;
}

/* Makes the cursor at position 0. */
static bool begin(struct stream *stream, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	struct cursor_source *sources = calloc(source->datasets, sizeof(*sources));
	struct cursor identity = {
		.seed = source->seed,
		.seq_len = source->seq_len,
		.extra = source->extra,
		.stride = source->stride,
		.epochs = source->epochs,
		.samples = source->samples,
	};
	char bytes[LIMIT_CURSOR_BYTES];
	bool done = sources;

	memcpy(identity.stream, source->name, sizeof(identity.stream));
	for (uint32_t i = 0; done && i < source->datasets; i++)
		dataset_source(&stream->dataset[i], &sources[i]);
	done = done ? cursor_begin(&stream->begin, &identity, sources, source->datasets,
			      source->step, source->steps, fault)
		    : fault_memory(fault);
	free(sources);
	if (!done)
		return false;
	stream->begin_length = cursor_encode(&stream->begin, bytes, sizeof(bytes));
	assert(stream->begin_length > 0);
	stream->begin_bytes = malloc(stream->begin_length);
	if (!stream->begin_bytes)
		return fault_memory(fault);
	memcpy(stream->begin_bytes, bytes, stream->begin_length);
	return true;
}

/*
 * Whether documents end in @d, by an index or by the eos, which must fit its tokens. Whether a
 * manifest's shards have an index is not known yet.
 */
static bool check_ends(const struct stream *stream, const struct dataset *d, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	bool indexed = d->listed || d->unindexed == d->table.shards,
	     fits = source->eos <= UINT16_MAX || d->token_bytes > 2 ||
		    (indexed && stream->token_bytes > 2);
	char field[sizeof(fault->field)];

	if (!source->documents || (source->has_eos ? fits : indexed))
		return true;
	snprintf(field, sizeof(field), "streams.%s.%s", source->name,
		source->has_eos ? "eos" : "documents");
	if (source->has_eos)
		return config_refuse(fault, stream->file, source->eos_line, field,
			"%" PRIu64 " does not fit u16, so no document of dataset %s would end; "
			"must be at most %d",
			source->eos, d->config->name, UINT16_MAX);
	return config_refuse(fault, stream->file, source->documents_line, field,
		"the ends of documents in dataset %s are unknown: shard %s, of format %s, has no "
		"index; set eos, the token that ends a document",
		d->config->name, dataset_shard_name(d, d->unindexed), d->format->name);
}

/* Serves @d in more than its own width: shards are converted when they are read. */
static void widen(struct dataset *d, uint32_t token_bytes)
{
	assert(token_bytes > d->token_bytes);
	assert(!d->is_signed); /* signed: i32, already the widest */
	d->token_bytes = token_bytes;
	d->hint.token_bytes = token_bytes;
	d->plain = false;
	for (uint64_t s = 0; s < d->table.shards; s++)
		d->entry[s].plain_at = 0;
}

/* A stream serves all datasets in one width, that of the widest. */
static bool set_width(struct stream *stream, struct fault *fault)
{
	uint32_t n = stream->config->datasets;

	for (uint32_t i = 0; i < n; i++)
		if (stream->dataset[i].token_bytes > stream->token_bytes)
			stream->token_bytes = stream->dataset[i].token_bytes;
	assert(stream->token_bytes == 2 || stream->token_bytes == 4);
	for (uint32_t i = 0; i < n; i++) {
		struct dataset *d = &stream->dataset[i];

		if (!check_ends(stream, d, fault))
			return false;
		if (d->token_bytes < stream->token_bytes)
			widen(d, stream->token_bytes);
		assert(d->token_bytes == stream->token_bytes);
	}
	return true;
}

/* Opens the datasets of @source. On failure catalog_free() frees the stream. */
static bool open_stream(struct stream *stream, const struct config_stream *source,
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault)
{
	struct fault cause;

	stream->config = source;
	stream->file = config->path;
	stream->dataset = calloc(source->datasets, sizeof(*stream->dataset));
	if (!stream->dataset) {
		fault_memory(&cause);
		return refuse_cursor(stream, &cause, fault);
	}
	for (uint32_t i = 0; i < source->datasets; i++) {
		struct dataset *d = &stream->dataset[i];
		const struct opening o = {
			config, source, &source->dataset[i], stores, d, fault, saved};

		d->config = &source->dataset[i];
		if (!dataset_open(&o))
			return false;
	}
	if (!set_width(stream, fault))
		return false;
	return begin(stream, &cause) || refuse_cursor(stream, &cause, fault);
}

/* ---- a stream and a cursor ---- */

void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out)
{
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		out[d] = NULL;
		for (uint32_t i = 0; i < stream->config->datasets; i++)
			if (strcmp(cursor->dataset[d].name, stream->dataset[i].config->name) == 0)
				out[d] = &stream->dataset[i];
	}
}

bool stream_schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault)
{
	const struct config_stream *config = stream->config;
	uint32_t steps = config->steps;
	size_t n = cursor->datasets;
	/* Row 0 has the config's weights, row k + 1 those of step k, in the cursor's order. */
	double *weights = calloc((steps + 1) * n, sizeof(*weights));
	struct cursor_step *step = calloc(steps + 1, sizeof(*step));
	uint64_t *max_epochs = calloc(n, sizeof(*max_epochs));
	bool done = weights && step && max_epochs,
	     begun = steps > 0 && config->step[0].from < config->step[0].to &&
		     config->step[0].from < cursor_mix_at(cursor);
	char field[FAULT_FIELD_BYTES];
	struct fault cause;

	if (!done)
		fault_memory(&cause);
	for (size_t d = 0; done && d < n; d++)
		max_epochs[d] = cursor->dataset[d].max_epochs;
	for (uint32_t k = 0; done && k < steps; k++) {
		step[k] = config->step[k];
		step[k].weights = weights + (k + 1) * n;
	}
	for (uint32_t i = 0; done && i < config->datasets; i++) {
		const struct config_dataset *source = &config->dataset[i];
		int d = cursor_find(cursor, source->name);
		bool has_weight = begun && source->weight > 0;

		for (uint32_t k = 0; k < steps; k++) {
			has_weight |= config->step[k].weights[i] > 0;
			if (d >= 0)
				weights[(k + 1) * n + (size_t)d] = config->step[k].weights[i];
		}
		if (d >= 0) {
			weights[d] = source->weight;
			max_epochs[d] = source->max_epochs;
		} else if (has_weight) {
			snprintf(field, sizeof(field), "dataset %s: weight", source->name);
			done = fault_set(&cause, FAULT_ARGUMENT, field,
				"the schedule gives it weight, but the cursor does not have it "
				"yet; add it first (tokctl cursor add)");
		}
	}
	done = done &&
	       cursor_schedule(cursor, begun ? weights : NULL, step, steps, max_epochs, &cause);
	free(weights);
	free(step);
	free(max_epochs);
	return done || refuse_cursor(stream, &cause, fault);
}

/* ---- parts of paths ---- */

/*
 * Parts of one path are disjoint only if they are parts of the same windows. Also notes whether @d
 * has windows of the part of an earlier dataset of its stream.
 */
static bool check_part(const struct catalog *catalog, const struct stream *stream,
	struct dataset *d, struct fault *fault)
{
	const struct config_stream *mine = stream->config;
	char field[FAULT_FIELD_BYTES];

	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t j = 0; j < catalog->config->stream[i].datasets; j++) {
			const struct config_stream *its = catalog->stream[i].config;
			const struct dataset *e = &catalog->stream[i].dataset[j];

			if (e == d || !(dataset_is_part(d) || dataset_is_part(e)) ||
				!dataset_same_path(d, e))
				continue;
			if (its == mine && e < d && d->config->lo < e->config->hi &&
				e->config->lo < d->config->hi)
				d->overlaps = e->config;
			if (!dataset_is_part(d) ||
				(mine->seq_len == its->seq_len && mine->extra == its->extra &&
					d->table.stride == e->table.stride))
				continue;
			snprintf(field, sizeof(field), "streams.%.40s.datasets[%td].part",
				mine->name, d - stream->dataset);
			return config_refuse(fault, catalog->config->path, d->config->part_line,
				field,
				"stream %s cuts this path with another seq_len, extra or stride, "
				"so that what is outside of the part here may be inside there; "
				"must be the same in both",
				its->name);
		}
	return true;
}

static bool check_parts(const struct catalog *catalog, struct fault *fault)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *stream = &catalog->stream[i];

		for (uint32_t d = 0; d < stream->config->datasets; d++)
			if (!check_part(catalog, stream, &stream->dataset[d], fault))
				return false;
	}
	return true;
}

/* ---- how datasets in a store are read ---- */

static uint64_t all_bytes(const struct dataset *d)
{
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < d->table.shards; i++)
		bytes += d->entry[i].file.bytes;
	return bytes;
}

/* Decides it from config and manifests only, in the config's order. */
static void plan_fetch(struct catalog *catalog)
{
	uint64_t left = catalog->config->cache_bytes;

	for (uint32_t s = 0; catalog->config->cache_dir && s < catalog->config->streams; s++)
		for (uint32_t i = 0; i < catalog->config->stream[s].datasets; i++) {
			struct dataset *d = &catalog->stream[s].dataset[i];
			uint64_t bytes = d->objects ? all_bytes(d) : 0;

			if (!d->objects || d->config->fetch == CONFIG_FETCH_WINDOW ||
				(d->config->fetch == CONFIG_FETCH_AUTO && bytes > left))
				continue;
			d->piece = d->config->piece;
			left -= bytes < left ? bytes : left;
		}
}

/* ---- all streams ---- */

/* @only: the stream to open, NULL for all. @saved: as catalog_save() wrote it, or NULL. */
static struct catalog *open_catalog(const struct config *config, struct stores *stores,
	const struct config_stream *only, FILE *saved, struct fault *fault)
{
	struct catalog *catalog = calloc(1, sizeof(*catalog));

	if (catalog)
		catalog->stream = calloc(config->streams, sizeof(*catalog->stream));
	if (!catalog || !catalog->stream) {
		config_refuse_memory(fault, config->path, 1, "streams");
		goto fail;
	}
	catalog->config = config;
	for (uint32_t i = 0; i < config->streams; i++)
		catalog->stream[i].slot = i;
	for (uint32_t i = 0; i < config->streams; i++)
		if ((!only || only == &config->stream[i]) &&
			!open_stream(&catalog->stream[i], &config->stream[i], config, stores, saved,
				fault))
			goto fail;
	if (!only && !check_parts(catalog, fault))
		goto fail;
	if (!only)
		plan_fetch(catalog);
	return catalog;
fail:
	catalog_free(catalog);
	return NULL;
}

struct catalog *catalog_open(
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault)
{
	return open_catalog(config, stores, NULL, saved, fault);
}

bool catalog_save(const struct catalog *catalog, FILE *to)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++) {
			struct dataset *dataset = &catalog->stream[i].dataset[d];

			if (!dataset->objects && !dataset_save(dataset, to))
				return false;
		}
	return fflush(to) == 0;
}

struct catalog *catalog_open_stream(
	const struct config *config, struct stores *stores, const char *stream, struct fault *fault)
{
	const struct config_stream *only = config_stream(config, stream);
	char list[NEAREST_LIST_BYTES];

	if (only)
		return open_catalog(config, stores, only, NULL, fault);
	config_refuse(fault, config->path, config->stream[0].line, "streams",
		"no stream is called %s; must be one of: %s", stream,
		config_list_streams(config, stream, list));
	return NULL;
}

void catalog_free(struct catalog *catalog)
{
	if (!catalog)
		return;
	for (uint32_t i = 0; catalog->stream && i < catalog->config->streams; i++) {
		struct stream *stream = &catalog->stream[i];

		for (uint32_t d = 0; stream->dataset && d < stream->config->datasets; d++)
			dataset_close(&stream->dataset[d]);
		free(stream->dataset);
		cursor_free(&stream->begin);
		free(stream->begin_bytes);
	}
	free(catalog->stream);
	free(catalog);
}

const struct stream *catalog_stream(const struct catalog *catalog, const char *name)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		if (catalog->stream[i].config && strcmp(catalog->stream[i].config->name, name) == 0)
			return &catalog->stream[i];
	return NULL;
}
