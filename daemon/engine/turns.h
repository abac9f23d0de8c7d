/*
 * Whose turn it is: deficit round robin over a tree, by the cost of reads in bytes.
 *
 *   root ── user ── run ── feed
 *
 * A node keeps a ring of its children that have something to do; the one in turn is first. It
 * spends its credit, then gets more, and the next child is first. So users get equal shares however
 * many runs they have, runs of one user get equal shares however many feeds they have, and feeds of
 * one run get equal shares however large their batches are. A child that could not pay for its last
 * read is passed over until its credit covers the debt.
 *
 * A node with siblings may have TURN_IN_FLIGHT bytes in flight, or one read. Otherwise the large
 * rows of one would fill the device's queues, and its siblings would wait there instead of for
 * their turn. A node at this limit leaves the ring until some of its reads are done. Reads of a
 * leaf that is apart count for that leaf alone: its storage is slow, and its siblings do not wait
 * for it.
 */
#ifndef TOKEND_TURNS_H
#define TOKEND_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	TURN_QUANTUM = 64 << 10,
	TURN_ROW = 4 << 10,   /* cost of a row besides its bytes */
	TURN_WAKE = 16 << 10, /* cost of waking the client */
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
	bool apart;	 /* a leaf: its reads in flight do not count for its parent */
	bool queued;	 /* it is in the parent's ring */
};

/* Makes @turn, all zeros, a child of @parent. */
void turn_join(struct turn *turn, struct turn *parent);
/* Undoes turn_join(). Nothing of @turn may be in flight or ready, and it has no children. */
void turn_leave(struct turn *turn);
/* Says whether the leaf has something to do. */
void turn_ready(struct turn *leaf, bool ready);
/* Says whether the leaf is apart. */
void turn_apart(struct turn *leaf, bool apart);
/* Asserts the invariants of one node, in constant time. */
void turn_check(const struct turn *turn);
/* The leaf in turn, or NULL. */
struct turn *turn_next(struct turn *root);
/* Charges @cost to the leaf: for a read, which is in flight until turn_land(), or for something
 * else. */
void turn_spend(struct turn *leaf, uint64_t cost, bool read);
void turn_land(struct turn *leaf, uint64_t cost);

#endif
