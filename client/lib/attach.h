/*
 * Attaching: find a daemon, map its ring, read its cursor. A daemon may die at any time and restart
 * without memory of its sessions, so an attach carries the complete state.
 */
#ifndef TOKEND_ATTACH_H
#define TOKEND_ATTACH_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* The position and the rank to attach at. */
struct target {
	const void *cursor; /* or NULL */
	size_t cursor_bytes;
	const char *tag; /* or NULL */
	uint64_t position;
	bool at_position; /* with neither cursor, tag nor position: the beginning */
	uint64_t rank, world;
	uint32_t micro_batch;
};

/* Checks rank, world and micro_batch. Returns 0 or EARGUMENT. */
int attach_check(struct tokend *t, const struct target *target);
/*
 * Continues the search @s. Returns 1 with a feed in t->packet, for attach_feed(); 0 if there is
 * none yet and !@wait; or an error.
 */
int attach_step(struct tokend *t, const struct target *target, struct search *s, bool wait);
/* Makes a mapping and a cursor of the feed in t->packet; the caller owns both. Returns 1, or
 * EPROTOCOL, EMEMORY. */
int attach_feed(
	struct tokend *t, const struct target *target, struct mapping **m, struct cursor *cursor);
/* A complete search. Returns 1, and the caller owns *@m, *@cursor and *@fd; or an error. */
int attach_find(struct tokend *t, const struct target *target, const struct patience *patience,
	struct mapping **m, struct cursor *cursor, int *fd);
/* Makes @m the current mapping and @fd its session; the handle owns both. The former mapping stays
 * while batches of it are held. */
void attach_adopt(struct tokend *t, struct mapping *m, int fd);

#endif
