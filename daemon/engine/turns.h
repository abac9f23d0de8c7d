/*
 * Whose turn it is: deficit round robin over a tree, by what reads cost in bytes.
 *
 *   root ── user ── run ── feed
 *
 * The children of a node that have something to do stand in its ring, the one in turn first. It
 * spends its credit; then it gets more and the next child is first. So users get equal shares
 * however many runs they have, runs of one user equal shares however many feeds, and feeds of one
 * run equal shares however large their batches are. A child that could not pay for its last read
 * sits out until its credit covers the debt.
 *
 * A node with siblings may have TURN_IN_FLIGHT in flight, or one read: otherwise the large rows of
 * one would fill the queues that the reads of its siblings wait in, and what they wait for is that,
 * not their turn. Such a node leaves the ring until reads of it are done. Reads of a leaf that
 * stands apart count for that leaf alone: they may never be done, and its siblings do not wait for
 * them.
 */
#ifndef TOKEND_TURNS_H
#define TOKEND_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	TURN_QUANTUM = 64 << 10,
	TURN_ROW = 4 << 10, /* what a row costs besides its bytes: small ones are not for nothing */
	TURN_WAKE = 16 << 10, /* what it costs to wake the client */
	TURN_IN_FLIGHT = 2 << 20,
};

struct turn {
	struct turn *parent;	    /* NULL: the root */
	struct turn *next, *before; /* in the parent's ring */
	struct turn *ring;	    /* of its children: the one in turn */
	unsigned children;	    /* in the ring or not */
	int64_t credit;
	uint64_t flying; /* cost of the reads in flight */
	bool ready;	 /* a leaf: it has something to do */
	bool apart;	 /* a leaf: what it has in flight is not its parent's */
	bool queued;	 /* it is in the parent's ring */
};

/* Makes @turn, all zeros, a child of @parent; takes it away again when nothing of it is in flight.
 */
void turn_join(struct turn *turn, struct turn *parent);
void turn_leave(struct turn *turn);
/* The leaf has something to do, or has nothing. */
void turn_ready(struct turn *leaf, bool ready);
/* The leaf stands apart from now on, or no longer. */
void turn_apart(struct turn *leaf, bool apart);
/* The leaf in turn, or NULL. */
struct turn *turn_next(struct turn *root);
/* The leaf has had @cost done for it: a read that is in flight until turn_land(), or something
 * else. */
void turn_spend(struct turn *leaf, uint64_t cost, bool read);
void turn_land(struct turn *leaf, uint64_t cost);

#endif
