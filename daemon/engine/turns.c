#include "daemon/engine/turns.h"

#include <assert.h>
#include <stddef.h>

static bool is_held(const struct turn *turn)
{
	assert(turn->parent && turn->parent->children > 0);
	return turn->flying >= TURN_IN_FLIGHT && turn->parent->children > 1;
}

void turn_check(const struct turn *turn)
{
	if (turn->ring) {
		assert(turn->children > 0);
		assert(turn->ring->queued && turn->ring->parent == turn);
	}
	if (!turn->parent) { /* the root, or a node that is not in use */
		assert(!turn->queued && !turn->ready && turn->flying == 0);
		return;
	}
	assert(turn->parent->children > 0);
	assert(turn->credit <= TURN_QUANTUM);
	assert(!turn->queued || turn->ready || turn->ring);
	assert(!turn->queued || turn->parent->ring);
	if (turn->queued) {
		assert(turn->next->before == turn && turn->before->next == turn);
		assert(turn->next->parent == turn->parent);
	}
}

static void ring_add(struct turn *turn)
{
	assert(!turn->queued);
	struct turn *first = turn->parent->ring;

	turn->queued = true;
	if (!first) {
		turn->parent->ring = turn->next = turn->before = turn;
		return;
	}
	turn->next = first;
	turn->before = first->before;
	turn->before->next = turn;
	first->before = turn;
}

static void ring_remove(struct turn *turn)
{
	assert(turn->queued && turn->parent->ring);
	turn->queued = false;
	turn->before->next = turn->next;
	turn->next->before = turn->before;
	if (turn->parent->ring == turn)
		turn->parent->ring = turn->next == turn ? NULL : turn->next;
}

/* Puts @turn into its parent's ring or takes it out, as its state requires. */
static void settle(struct turn *turn)
{
	bool queue = (turn->ready || turn->ring) && !is_held(turn);

	if (queue && !turn->queued)
		ring_add(turn);
	else if (!queue && turn->queued)
		ring_remove(turn);
}

void turn_join(struct turn *turn, struct turn *parent)
{
	assert(!turn->parent && !turn->queued && turn->flying == 0);
	assert(parent != turn);
	turn->parent = parent;
	turn->credit = TURN_QUANTUM;
	parent->children++;
}

void turn_leave(struct turn *turn)
{
	assert(!turn->queued && !turn->ring && turn->children == 0 && turn->flying == 0);
	turn->parent->children--;
	turn->parent = NULL;
}

void turn_ready(struct turn *leaf, bool ready)
{
	assert(leaf->parent && leaf->children == 0);
	leaf->ready = ready;
	for (struct turn *turn = leaf; turn->parent; turn = turn->parent)
		settle(turn);
}

struct turn *turn_next(struct turn *root)
{
	struct turn *turn = root;

	assert(!root->parent);
	while (turn->ring) {
		for (; turn->ring->credit <= 0; turn->ring = turn->ring->next)
			turn->ring->credit += TURN_QUANTUM;
		turn = turn->ring;
	}
	return turn == root ? NULL : turn;
}

void turn_apart(struct turn *leaf, bool apart)
{
	assert(leaf->parent && leaf->children == 0);
	if (leaf->apart == apart)
		return;
	leaf->apart = apart;
	for (struct turn *turn = leaf->parent; turn->parent; turn = turn->parent) {
		assert(!apart || turn->flying >= leaf->flying);
		turn->flying += apart ? -leaf->flying : leaf->flying;
		settle(turn);
	}
}

void turn_spend(struct turn *leaf, uint64_t cost, bool read)
{
	for (struct turn *turn = leaf; turn->parent; turn = turn->parent) {
		turn->credit -= (int64_t)cost;
		turn->flying += read && (turn == leaf || !leaf->apart) ? cost : 0;
		settle(turn);
	}
}

void turn_land(struct turn *leaf, uint64_t cost)
{
	for (struct turn *turn = leaf; turn->parent; turn = turn->parent) {
		if (turn != leaf && leaf->apart)
			return;
		assert(turn->flying >= cost);
		turn->flying -= cost;
		settle(turn);
	}
}
