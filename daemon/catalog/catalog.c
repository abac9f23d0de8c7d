#include "daemon/catalog/opening.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of one path are disjoint only if they are parts of the same windows. */
static bool same_windows(
	const struct catalog *catalog, const struct stream *a, uint32_t i, struct fault *fault)
{
	const struct dataset *d = &a->dataset[i];
	char field[FAULT_FIELD_BYTES];

	for (const struct stream *b = catalog->stream;
		b < catalog->stream + catalog->config->streams; b++)
		for (uint32_t j = 0; j < b->config->datasets; j++) {
			const struct dataset *e = &b->dataset[j];

			if ((a->config->seq_len == b->config->seq_len &&
				    a->config->extra == b->config->extra &&
				    d->table.stride == e->table.stride) ||
				!dataset_same_path(d, e))
				continue;
			snprintf(field, sizeof(field), "streams.%.40s.datasets[%" PRIu32 "].part",
				a->config->name, i);
			return config_refuse(fault, catalog->config->path, d->config->part_line,
				field,
				"stream %s cuts this path with another seq_len, extra or stride, "
				"so that what is outside of the part here may be inside there; "
				"must be the same in both",
				b->config->name);
		}
	return true;
}

static bool check_parts(const struct catalog *catalog, struct fault *fault)
{
	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		const struct stream *stream = &catalog->stream[s];

		for (uint32_t i = 0; i < stream->config->datasets; i++)
			if (dataset_is_part(&stream->dataset[i]) &&
				!same_windows(catalog, stream, i, fault))
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

void dataset_fetch_reason(
	const struct config *config, const struct dataset *d, char *text, size_t text_bytes)
{
	static const char *const set[] = {
		[CONFIG_FETCH_WINDOW] = "fetch is window", [CONFIG_FETCH_PIECE] = "fetch is piece"};
	const char *why = d->config->fetch != CONFIG_FETCH_AUTO ? set[d->config->fetch]
			  : !config->cache_dir			? "there is no cache"
			  : d->piece ? "the cache has space for all of it"
				     : "the cache has no space for all of it";

	text[0] = 0;
	if (d->objects && d->piece)
		snprintf(text, text_bytes, "in pieces of %" PRIu32 " KiB: %s", d->piece >> 10, why);
	else if (d->objects)
		snprintf(text, text_bytes, "by window: %s", why);
}

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
			!stream_open(&catalog->stream[i], &config->stream[i], config, stores, saved,
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
	const struct config *config, struct stores *stores, struct fault *fault)
{
	return open_catalog(config, stores, NULL, NULL, fault);
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

struct catalog *catalog_open_saved(
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault)
{
	return open_catalog(config, stores, NULL, saved, fault);
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
