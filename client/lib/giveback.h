/*
 * Slots come back in any order, the daemon hears of them in order: `released` follows the oldest
 * slot that is still out. A bit a slot remembers those that came back before it. Plain arithmetic
 * on one thread.
 */
#ifndef TOKEND_GIVEBACK_H
#define TOKEND_GIVEBACK_H

#include <stdbool.h>
#include <stdint.h>

struct giveback {
	uint64_t taken;	   /* slots handed out */
	uint64_t released; /* all slots below are back; taken - released ≤ slots */
	uint64_t *bits;	   /* [giveback_words(slots)] */
	uint32_t slots;
};

static inline uint32_t giveback_words(uint32_t slots)
{
	return (slots + 63) / 64;
}

static inline bool giveback_early(const struct giveback *g, uint64_t s)
{
	uint32_t bit = (uint32_t)(s % g->slots);

	return g->bits[bit / 64] >> bit % 64 & 1;
}

static inline void giveback_flip(struct giveback *g, uint64_t s)
{
	uint32_t bit = (uint32_t)(s % g->slots);

	g->bits[bit / 64] ^= UINT64_C(1) << bit % 64;
}

/* Slot number @s is back. False if it was not out. */
static inline bool giveback_return(struct giveback *g, uint64_t s)
{
	if (s < g->released || s >= g->taken)
		return false;
	if (s != g->released) {
		if (giveback_early(g, s))
			return false;
		giveback_flip(g, s);
		return true;
	}
	for (g->released++; g->released < g->taken && giveback_early(g, g->released); g->released++)
		giveback_flip(g, g->released);
	return true;
}

/* Nothing can be handed out until the oldest slot comes back. */
static inline bool giveback_full(const struct giveback *g)
{
	return g->taken - g->released == g->slots;
}

#endif
