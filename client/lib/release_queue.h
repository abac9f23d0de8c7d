/*
 * Slots waiting to be given back to the daemon. Trainers release them in any order, the daemon gets
 * them in order: `released` is the oldest slot that is still held. One bit per slot stores those
 * released before it. Used by one thread.
 */
#ifndef TOKEND_RELEASE_QUEUE_H
#define TOKEND_RELEASE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct release_queue {
	uint64_t taken;	   /* number of slots taken */
	uint64_t released; /* all slots below are released; taken - released ≤ slots */
	uint64_t *bits;	   /* [release_queue_words(slots)] */
	uint32_t slots;
};

static inline uint32_t release_queue_words(uint32_t slots)
{
	return (slots + 63) / 64;
}

/* True if slot @s, which is ≥ `released`, was released. */
static inline bool release_queue_has(const struct release_queue *q, uint64_t s)
{
	uint32_t bit = (uint32_t)(s % q->slots);

	return q->bits[bit / 64] >> bit % 64 & 1;
}

static inline void release_queue_flip(struct release_queue *q, uint64_t s)
{
	uint32_t bit = (uint32_t)(s % q->slots);

	q->bits[bit / 64] ^= UINT64_C(1) << bit % 64;
}

/* Releases slot @s. False if it was not held. */
static inline bool release_queue_return(struct release_queue *q, uint64_t s)
{
	if (s < q->released || s >= q->taken)
		return false;
	if (s != q->released) {
		if (release_queue_has(q, s))
			return false;
		release_queue_flip(q, s);
		return true;
	}
	for (q->released++; q->released < q->taken && release_queue_has(q, q->released);
		q->released++)
		release_queue_flip(q, q->released);
	return true;
}

/* True if no slot is free until the oldest one is released. */
static inline bool release_queue_full(const struct release_queue *q)
{
	return q->taken - q->released == q->slots;
}

#endif
