/*
 * A generation is one load of the config: its keys and its open streams. It does not change. New
 * sessions use the newest one. A session keeps that of its attach until it ends, so a reload leaves
 * running sessions alone, and the data thread needs no lock: it sees only the datasets of feeds.
 *
 * The slot of a stream is its number in the engine and in the reader. All generations have one slot
 * for one name: the sessions of a run belong together, whatever their generations are.
 *
 * A generation that is not the newest is freed when nothing holds it and the data thread has
 * forgotten its datasets. All on the loop.
 */
#ifndef TOKEND_GENERATION_H
#define TOKEND_GENERATION_H

#include "daemon/catalog/catalog.h"

struct generation {
	struct generation *older;
	struct config *config;
	struct catalog *catalog;
	unsigned holders; /* sessions, requests, snapshots being saved */
};

struct generations {
	struct generation *newest;
	struct generation first; /* its config and catalog are the caller's */
	uint32_t slots;		 /* at most: the reader's streams */
};

/* @catalog: what the daemon began with; it outlives @all. Its streams have their slots. */
void generations_init(struct generations *all, const struct catalog *catalog, uint32_t slots);
/* Gives the streams of @catalog their slots. False: FAULT_ARGUMENT, more streams than slots. */
bool generations_place(const struct generations *all, struct catalog *catalog, struct fault *fault);
/* Makes @generation, with its config and catalog, the newest. Takes ownership of all three. */
void generations_add(struct generations *all, struct generation *generation);
/* The newest stream with this slot. NULL: there is none. */
const struct stream *generations_stream(const struct generations *all, uint32_t slot);
/* One that nothing holds, to be removed once the data thread has forgotten its datasets; or NULL.
 */
struct generation *generations_unused(const struct generations *all);
/* Removes and frees it, except what generations_init() was given. */
void generations_remove(struct generations *all, struct generation *unused);
/* Frees all, except what generations_init() was given. */
void generations_free(struct generations *all);

static inline struct generation *generation_hold(struct generation *generation)
{
	generation->holders++;
	return generation;
}

/* @generation may be NULL. */
void generation_drop(struct generation *generation);

#endif
