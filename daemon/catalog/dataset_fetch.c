#include "daemon/catalog/opening.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { GROUPS = 3, PIECES = 64 };

static uint64_t all_bytes(const struct dataset *d)
{
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < d->table.shards; i++)
		bytes += d->entry[i].file.bytes;
	return bytes;
}

uint64_t dataset_fetch_needs(const struct dataset *d)
{
	const struct config_dataset *c = d->config;
	uint64_t all = all_bytes(d), some = (uint64_t)PIECES * c->piece;
	double windows = (double)c->block * c->group * GROUPS;

	/* Compressed bytes are fewer than tokens: the dataset's own ratio counts. A part takes a
	 * run here and a run there, so that a piece is needed many times. */
	if (dataset_is_part(d) || c->shuffle == ORDER_GLOBAL)
		some = all;
	else if (c->shuffle == ORDER_BLOCK && windows < (double)d->windows)
		some = (uint64_t)((double)all * windows / (double)d->windows) + c->piece;
	else if (c->shuffle == ORDER_BLOCK)
		some = all;
	return some < all ? some : all;
}

/* Another dataset of the same objects, before @d, that is in pieces: they share them. */
static bool shares(const struct catalog *catalog, const struct dataset *d)
{
	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		const struct stream *stream = &catalog->stream[s];

		for (uint32_t i = 0; stream->config && i < stream->config->datasets; i++) {
			const struct dataset *other = &stream->dataset[i];

			if (other != d && other->piece == d->config->piece &&
				strcmp(other->config->path, d->config->path) == 0)
				return true;
		}
	}
	return false;
}

static bool refuse_small(
	const struct catalog *catalog, const struct stream *stream, uint32_t i, struct fault *fault)
{
	const struct config *config = catalog->config;
	char field[FAULT_FIELD_BYTES];

	snprintf(field, sizeof(field), "streams.%.40s.datasets[%" PRIu32 "].piece",
		stream->config->name, i);
	return config_refuse(fault, config->path, stream->config->dataset[i].piece_line, field,
		"the cache of %" PRIu64 " bytes has space for %" PRIu64 " pieces of %" PRIu32
		"; must be at least %d: raise cache.size, or lower piece",
		config->cache_bytes, config->cache_bytes / stream->config->dataset[i].piece,
		stream->config->dataset[i].piece, PIECES);
}

/* Gives the cache's space to datasets with @fetch. */
static bool plan(
	struct catalog *catalog, enum config_fetch fetch, uint64_t *left, struct fault *fault)
{
	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		const struct stream *stream = &catalog->stream[s];

		for (uint32_t i = 0; stream->config && i < stream->config->datasets; i++) {
			struct dataset *d = &stream->dataset[i];
			uint64_t need;

			if (!d->objects || d->config->fetch != fetch)
				continue;
			bool large = catalog->config->cache_bytes / d->config->piece >= PIECES;

			if (fetch == CONFIG_FETCH_PIECE && !large)
				return refuse_small(catalog, stream, i, fault);
			need = shares(catalog, d) ? 0 : dataset_fetch_needs(d);
			if (fetch == CONFIG_FETCH_AUTO && (!large || need > *left))
				continue;
			d->piece = d->config->piece;
			*left -= need < *left ? need : *left;
		}
	}
	return true;
}

bool dataset_fetch_plan(struct catalog *catalog, struct fault *fault)
{
	uint64_t left = catalog->config->cache_bytes;

	return !catalog->config->cache_dir ||
	       (plan(catalog, CONFIG_FETCH_PIECE, &left, fault) &&
		       plan(catalog, CONFIG_FETCH_AUTO, &left, fault));
}

/* ---- words ---- */

/* A size with its largest unit that divides it. */
static const char *size_text(uint64_t bytes, char text[32])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	unsigned unit = 0;

	while (unit < 4 && bytes % 1024 == 0 && bytes > 0) {
		bytes /= 1024;
		unit++;
	}
	snprintf(text, 32, "%" PRIu64 " %s", bytes, units[unit]);
	return text;
}

static const char *part(const struct dataset *d)
{
	if (dataset_is_part(d) || d->config->shuffle == ORDER_GLOBAL)
		return "all of it";
	return d->config->shuffle == ORDER_BLOCK ? "three groups of blocks" : "64 pieces";
}

void dataset_fetch_reason(
	const struct config *config, const struct dataset *d, char *text, size_t text_bytes)
{
	char piece[32];

	size_text(d->config->piece, piece);
	if (!d->objects)
		text[0] = 0;
	else if (d->config->fetch == CONFIG_FETCH_PIECE)
		snprintf(text, text_bytes, "in pieces of %s: fetch is piece", piece);
	else if (d->config->fetch == CONFIG_FETCH_WINDOW)
		snprintf(text, text_bytes, "by window: fetch is window");
	else if (!config->cache_dir)
		snprintf(text, text_bytes, "by window: there is no cache");
	else if (d->piece)
		snprintf(text, text_bytes, "in pieces of %s: the cache has space for %s", piece,
			part(d));
	else
		snprintf(text, text_bytes,
			"by window: the cache has no space for %s (%.3g GB), or for %d pieces",
			part(d), (double)dataset_fetch_needs(d) / 1e9, PIECES);
}
