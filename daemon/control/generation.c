#include "daemon/control/generation.h"

#include "daemon/config/refuse.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void generations_init(struct generations *all, const struct catalog *catalog, uint32_t slots)
{
	/* Never written to, nor freed: it is the first. */
	all->first.config = (struct config *)(uintptr_t)catalog->config;
	all->first.catalog = (struct catalog *)(uintptr_t)catalog;
	all->newest = &all->first;
	all->slots = slots > catalog->config->streams ? slots : catalog->config->streams;
}

const struct stream *generations_stream(const struct generations *all, uint32_t slot)
{
	for (const struct generation *g = all->newest; g; g = g->older)
		for (uint32_t i = 0; i < g->config->streams; i++)
			if (g->catalog->stream[i].slot == slot)
				return &g->catalog->stream[i];
	return NULL;
}

/* The slot of a stream of this name, in any generation. UINT32_MAX: none. */
static uint32_t slot_of(const struct generations *all, const char *name)
{
	for (const struct generation *g = all->newest; g; g = g->older) {
		const struct stream *stream = catalog_stream(g->catalog, name);

		if (stream)
			return stream->slot;
	}
	return UINT32_MAX;
}

bool generations_place(const struct generations *all, struct catalog *catalog, struct fault *fault)
{
	uint32_t next = 0;

	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		struct stream *stream = &catalog->stream[i];

		stream->slot = slot_of(all, stream->config->name);
		if (stream->slot != UINT32_MAX)
			continue;
		while (next < all->slots && generations_stream(all, next))
			next++;
		if (next == all->slots)
			return config_refuse(fault, catalog->config->path, stream->config->line,
				"streams", FAULT_NO_INDEX,
				"all %" PRIu32
				" places for streams are in use, also by removed ones that "
				"sessions still read; restart tokend, or add fewer streams",
				all->slots);
		stream->slot = next++;
	}
	return true;
}

void generations_add(struct generations *all, struct generation *generation)
{
	generation->older = all->newest;
	all->newest = generation;
}

void generation_drop(struct generation *generation)
{
	if (!generation)
		return;
	assert(generation->holders > 0);
	generation->holders--;
}

static void generation_free(struct generation *generation)
{
	catalog_free(generation->catalog);
	config_free(generation->config);
	free(generation);
}

struct generation *generations_unused(const struct generations *all)
{
	struct generation *g = all->newest->older;

	while (g && g->holders > 0)
		g = g->older;
	return g;
}

void generations_remove(struct generations *all, struct generation *unused)
{
	struct generation **at = &all->newest->older;

	assert(unused->holders == 0);
	while (*at != unused)
		at = &(*at)->older;
	*at = unused->older;
	if (unused != &all->first)
		generation_free(unused);
}

void generations_free(struct generations *all)
{
	for (struct generation *g = all->newest, *older; g; g = older) {
		older = g->older;
		if (g != &all->first)
			generation_free(g);
	}
	all->newest = NULL;
}
