/*
 * Turns of the feeds: deficit round robin over a tree, by the cost of reads in bytes.
 *
 *   root ── user ── run ── feed
 *
 * A node keeps a ring of its children that have something to do; the first has the turn. It spends
 * its credit, then gets more, and the next child is first. A child in debt is passed over until its
 * credit is positive again. So users get equal shares however many runs they have. Runs of one user
 * do however many feeds they have, and feeds of one run however large their batches are.
 *
 * A node with siblings may have TURN_IN_FLIGHT bytes in flight, or one read. Otherwise the large
 * rows of one node would fill the device's queues, and its siblings would wait there, even on their
 * turn. A node at this limit leaves the ring until some of its reads are done. Reads of a leaf that
 * is apart, because its storage is slow, count for that leaf alone: its siblings do not wait for
 * it.
 */
#ifndef TOKEND_TURNS_H
#define TOKEND_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	TURN_QUANTUM = 64 << 10,
	TURN_ROW = 4 << 10,   /* cost of a row, in addition to its bytes */
	TURN_WAKE = 16 << 10, /* cost of waking the client */
	TURN_IN_FLIGHT = 512 << 10,
};

struct turn {
	struct turn *parent;	    /* NULL: the root */
	struct turn *next, *before; /* in the parent's ring */
	struct turn *ring;	    /* its first child in the ring */
	unsigned children;	    /* all of them, in the ring or not */
	int64_t credit;
	uint64_t flying; /* cost of the reads in flight */
	bool ready;	 /* a leaf: it has something to do */
	bool apart;	 /* a leaf: its reads in flight do not count for its parent */
	bool queued;	 /* it is in the parent's ring */
};

/* Makes @turn, which must be all zeros, a child of @parent. */
void turn_join(struct turn *turn, struct turn *parent);
/* Undoes turn_join(). @turn must have no children and nothing in flight or ready. */
void turn_leave(struct turn *turn);
/* Sets whether the leaf has something to do. */
void turn_ready(struct turn *leaf, bool ready);
/* Sets whether the leaf is apart. */
void turn_apart(struct turn *leaf, bool apart);
/* Asserts the invariants of one node, in constant time. */
void turn_check(const struct turn *turn);
/* The leaf that has the turn, or NULL. */
struct turn *turn_next(struct turn *root);
/* Charges @cost to the leaf. @read: for a read, which is in flight until turn_land(). */
void turn_spend(struct turn *leaf, uint64_t cost, bool read);
void turn_land(struct turn *leaf, uint64_t cost);

#endif
