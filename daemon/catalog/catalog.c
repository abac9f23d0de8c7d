#include "daemon/catalog/opening.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a stream ---- */

bool stream_refuse(const struct stream *stream, const struct fault *cause, struct fault *fault)
{
	const struct config_stream *config = stream->config;
	bool schedule = strncmp(cause->field, "schedule", strlen("schedule")) == 0,
	     step = cause->index >= 0 && (uint32_t)cause->index < config->steps;
	int line = !schedule ? config->line
		   : step    ? config->step_line[cause->index]
			     : config->schedule_line;
	char field[sizeof(fault->field) + LIMIT_NAME_BYTES + 16];

	snprintf(field, sizeof(field), "streams.%s: %s", config->name, cause->field);
	config_refuse(fault, stream->file, line, field, "%s", cause->text);
	if (cause->code == FAULT_MEMORY)
		fault->code = FAULT_MEMORY;
	return false;
}

/* Makes the cursor at position 0. */
static bool begin(struct stream *stream, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	struct cursor_source sources[LIMIT_DATASETS];
	struct cursor identity = {
		.seed = source->seed,
		.seq_len = source->seq_len,
		.extra = source->extra,
		.stride = source->stride,
		.epochs = source->epochs,
		.samples = source->samples,
	};

	memcpy(identity.stream, source->name, sizeof(identity.stream));
	for (uint32_t i = 0; i < source->datasets; i++)
		dataset_source(&stream->dataset[i], &sources[i]);
	return cursor_begin(&stream->begin, &identity, sources, source->datasets, source->step,
		source->steps, fault);
}

/* Whether documents end in @d, by an index or by the eos, which must fit its tokens. */
static bool check_ends(const struct stream *stream, const struct dataset *d, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	uint32_t width = d->indexed ? stream->token_bytes : d->token_bytes;
	char field[sizeof(fault->field)];

	if (!source->documents)
		return true;
	snprintf(field, sizeof(field), "streams.%s.%s", source->name,
		source->has_eos ? "eos" : "documents");
	if (source->has_eos)
		return source->eos <= UINT16_MAX || width > 2 ||
		       config_refuse(fault, stream->file, source->eos_line, field,
			       "%" PRIu64 " does not fit u16, so no document of dataset %s would "
			       "end; must be at most %d",
			       source->eos, d->config->name, UINT16_MAX);
	return d->indexed ||
	       config_refuse(fault, stream->file, source->documents_line, field,
		       "the ends of documents in dataset %s are unknown: shard %s, of format %s, "
		       "has no index; set eos, the token that ends a document",
		       d->config->name, shard_list_name(&d->list, 0), d->format->name);
}

/* A stream serves all datasets in one width, that of the widest. Shards of the others are converted
 * when they are read. */
static bool set_width(struct stream *stream, struct fault *fault)
{
	struct dataset *end = stream->dataset + stream->config->datasets;

	for (struct dataset *d = stream->dataset; d < end; d++)
		if (d->token_bytes > stream->token_bytes)
			stream->token_bytes = d->token_bytes;
	for (struct dataset *d = stream->dataset; d < end; d++) {
		if (!check_ends(stream, d, fault))
			return false;
		if (d->token_bytes == stream->token_bytes)
			continue;
		assert(!d->is_signed); /* signed: i32, already the widest */
		d->token_bytes = d->hint.token_bytes = stream->token_bytes;
		d->plain = false;
		for (uint64_t s = 0; s < d->table.shards; s++)
			d->entry[s].plain_at = 0;
	}
	return true;
}

/* Opens the datasets of @stream. */
static bool open_stream(struct stream *stream, FILE *saved, struct fault *fault)
{
	struct fault cause;

	for (uint32_t i = 0; i < stream->config->datasets; i++)
		if (!dataset_open(&stream->dataset[i], saved, fault))
			return false;
	return set_width(stream, fault) &&
	       (begin(stream, &cause) || stream_refuse(stream, &cause, fault));
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

/* ---- parts of paths ---- */

/* Two streams may have the same part. Returns whether it has remarked an overlap. */
static bool doubt_overlap(struct dataset *d, const struct dataset *e)
{
	const struct config_dataset *mine = d->config, *its = e->config;
	bool one = d->stream == e->stream, same = mine->lo == its->lo && mine->hi == its->hi;
	char text[ORDER_PART_BYTES], other[ORDER_PART_BYTES];

	if (mine->lo >= its->hi || its->lo >= mine->hi || (same && !one))
		return false;
	dataset_remark(d, REMARK_DOUBT,
		"its part of the path, %s, overlaps %s of dataset %s%s%s: both serve what "
		"is in both",
		order_part_text(mine->lo, mine->hi, text), order_part_text(its->lo, its->hi, other),
		its->name, one ? "" : " of stream ", one ? "" : e->stream->name);
	return true;
}

/* Parts of one path are disjoint only if they are parts of the same windows. @saved: as of
 * catalog_remarks(). */
static bool check_parts(const struct catalog *c, bool saved, struct fault *fault)
{
	const struct config_stream *told = NULL; /* of the last overlap: one each is enough */

	for (struct dataset *d = c->dataset; d < c->dataset + c->datasets; d++)
		for (struct dataset *e = c->dataset; e < d; e++) {
			const struct config_stream *mine = d->stream, *its = e->stream;
			bool part = dataset_is_part(d);

			if (!(part || dataset_is_part(e)) || !dataset_same_files(d, e))
				continue;
			if (told != mine && (d->bucket || !saved) && doubt_overlap(d, e))
				told = mine;
			if (mine->seq_len != its->seq_len || mine->extra != its->extra ||
				d->table.stride != e->table.stride)
				return REFUSE(part ? d : e, fault, part,
					"stream %s cuts these files with another seq_len, extra or "
					"stride, so that what is outside of the part here may be "
					"inside there; must be the same in both",
					part ? its->name : mine->name);
		}
	return true;
}

/* Decides how datasets in a store are read, from config and manifests only, in the config's order.
 */
static void plan_fetch(struct catalog *c)
{
	uint64_t left = c->config->cache_bytes;

	for (struct dataset *d = c->dataset; d < c->dataset + c->datasets; d++) {
		uint64_t bytes = 0;

		if (!c->config->cache_dir || !d->bucket || d->config->fetch == CONFIG_FETCH_WINDOW)
			continue;
		for (uint64_t s = 0; s < d->table.shards; s++)
			bytes += d->entry[s].bytes;
		if (d->config->fetch == CONFIG_FETCH_AUTO && bytes > left)
			continue;
		d->piece = d->config->piece;
		left -= bytes < left ? bytes : left;
	}
}

/* ---- all streams ---- */

/* A catalog whose datasets are not open. NULL: out of memory. */
static struct catalog *make_catalog(const struct config *config, struct stores *stores)
{
	struct catalog *c = calloc(1, sizeof(*c));
	struct dataset *d;

	if (!c)
		return NULL;
	c->config = config;
	for (uint32_t i = 0; i < config->streams; i++)
		c->datasets += config->stream[i].datasets;
	c->stream = calloc(config->streams, sizeof(*c->stream));
	d = c->dataset = calloc(c->datasets, sizeof(*c->dataset));
	for (uint32_t i = 0; c->stream && d && i < config->streams; i++) {
		const struct config_stream *stream = &config->stream[i];

		c->stream[i] = (struct stream){
			.config = stream, .file = config->path, .slot = i, .dataset = d};
		for (uint32_t k = 0; k < stream->datasets; k++)
			*d++ = (struct dataset){.file = config,
				.stream = stream,
				.config = &stream->dataset[k],
				.finder.stores = stores};
	}
	if (c->stream && d)
		return c;
	catalog_free(c);
	return NULL;
}

struct catalog *catalog_open(const struct config *config, struct stores *stores, const char *only,
	FILE *saved, struct fault *fault)
{
	struct catalog *catalog = make_catalog(config, stores);
	bool fine = catalog || fault_memory(fault);

	for (uint32_t i = 0; fine && i < config->streams; i++)
		if (!only || strcmp(only, config->stream[i].name) == 0)
			fine = open_stream(&catalog->stream[i], saved, fault);
	if (fine && !only) {
		fine = check_parts(catalog, saved, fault) &&
		       catalog_remarks(catalog, true, saved, fault) &&
		       catalog_remarks(catalog, false, saved, fault);
		plan_fetch(catalog);
	}
	if (fine)
		return catalog;
	catalog_free(catalog);
	return NULL;
}

bool catalog_save(const struct catalog *c, FILE *to)
{
	for (struct dataset *d = c->dataset; d < c->dataset + c->datasets; d++)
		if (!d->bucket && !dataset_save(d, to))
			return false;
	return fflush(to) == 0;
}

void catalog_free(struct catalog *catalog)
{
	if (!catalog)
		return;
	for (uint32_t d = 0; catalog->dataset && d < catalog->datasets; d++)
		dataset_close(&catalog->dataset[d]);
	for (uint32_t i = 0; catalog->stream && i < catalog->config->streams; i++)
		cursor_free(&catalog->stream[i].begin);
	free(catalog->dataset);
	free(catalog->stream);
	free(catalog);
}

const struct stream *catalog_stream(const struct catalog *catalog, const char *name)
{
	const struct config_stream *stream = config_stream(catalog->config, name);

	return stream ? &catalog->stream[stream - catalog->config->stream] : NULL;
}
