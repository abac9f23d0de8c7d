/*
 * Attaching: a search for a daemon that ends with a mapped ring and a cursor. A daemon may die at
 * any instruction and come back with an empty memory, so an attach says all there is to say.
 */
#ifndef TOKEND_ATTACH_H
#define TOKEND_ATTACH_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* What an attach asks for. */
struct target {
	const void *cursor; /* or NULL */
	size_t cursor_bytes;
	const char *tag; /* or NULL */
	uint64_t position;
	bool at_position; /* none of the three: the beginning */
	uint64_t rank, world;
	uint32_t micro_batch;
};

/* 0, or EARGUMENT if rank, world or micro_batch is none. */
int attach_check(struct tokend *t, const struct target *target);
/*
 * Goes on with the search @s. 1: a feed is in t->packet, for attach_feed(); 0: not yet (only if
 * !@wait), or an error.
 */
int attach_step(struct tokend *t, const struct target *target, struct search *s, bool wait);
/* The feed in t->packet as a mapping and a cursor, which are the caller's. 1, or EPROTOCOL,
 * EMEMORY. */
int attach_feed(
	struct tokend *t, const struct target *target, struct mapping **m, struct cursor *cursor);
/* A whole search. 1, and *@m, *@cursor and *@fd are the caller's; or an error. */
int attach_find(struct tokend *t, const struct target *target, const struct patience *patience,
	struct mapping **m, struct cursor *cursor, int *fd);
/* Makes @m the current mapping, reached over @fd. The former one stays while batches of it are
 * held. */
void attach_adopt(struct tokend *t, struct mapping *m, int fd);

#endif
