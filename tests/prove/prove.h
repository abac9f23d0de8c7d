/*
 * prove checks the claims of the order and of the cursor, over as many cases as a machine has time
 * for.
 *
 *   prove [--brief] [--seed S] [--seconds T] [PART…]
 *   prove --seed S --number N PART        one unit again, in this process
 *
 * A part is a list of units, numbered from 0. A unit has one or more cases, which depend only on
 * the seed and the unit's number. Units are distributed among processes; a failure ends its process
 * and names both numbers.
 *
 *   worlds   all W1→W2→W3 ≤ 16 with every micro-batch ≤ 4: real feeds, their rows against the order
 *   chains   rescales up to 32,768 ranks with edits, skips and restarts between them; counts of
 *            each mix
 *   orders   whole orders of such chains: bitmaps of ordinals, forwards and backwards
 */
#ifndef PROVE_H
#define PROVE_H

#include "proto/cursor.h"

#include "tests/unit/rng.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Totals of the processes that work on a part. */
struct prove_sums {
	_Atomic uint64_t next;	    /* the next unit */
	_Atomic uint64_t cases;	    /* by the part's own definition */
	_Atomic uint64_t positions; /* of the order, checked one by one */
};

/* A unit, and the state of its run. */
struct prove {
	const char *part;
	uint64_t seed, number;
	bool brief;
	struct rng rng;
	struct prove_sums *sums;
	const char *program;
};

struct prove_part {
	const char *name, *what;
	uint64_t units, brief_units; /* of a full run; the most of them if @timed */
	bool timed;		     /* a full run ends after --seconds */
	void (*run)(struct prove *p);
};

extern const struct prove_part prove_worlds, prove_chains, prove_orders;

/* Reports what is wrong and how to run it again, and ends the process. */
__attribute__((noreturn, format(printf, 3, 4))) void prove_broken(
	const struct prove *p, const char *what, const char *format, ...);
#define PROVE(p, what, ...) ((what) ? (void)0 : prove_broken(p, #what, __VA_ARGS__))

void *prove_memory(const struct prove *p, size_t n, size_t size); /* zeroed */

static inline bool prove_same(const struct order_place *a, const struct order_place *b)
{
	return a->dataset == b->dataset && a->epoch == b->epoch && a->window == b->window;
}

/* ---- random input ---- */

/* In [1, 2^bits]: [1, 2] is as likely as [2^(bits-1), 2^bits]. */
static inline uint64_t prove_log(struct rng *rng, unsigned bits)
{
	uint64_t below = UINT64_C(1) << (1 + rng_below(rng, bits));

	return below / 2 + rng_below(rng, below / 2 + 1);
}

/* A dataset named "d@index" with at most @windows windows. */
struct cursor_source prove_source(struct rng *rng, unsigned index, uint64_t windows, char name[16]);
/* Weights, at least one of them above 0. A dataset without windows gets 0. */
void prove_weights(struct rng *rng, const struct cursor *cursor, double *weights);
/* Encodes and decodes the cursor, as a checkpoint does. Returns the number of bytes. */
size_t prove_bytes(const struct prove *p, struct cursor *cursor);

/* ---- history ---- */

/* All segments of a run, collected from its cursors. If two differ, the later cursor's counts. */
struct prove_history {
	struct order_segment **segment;
	uint32_t segments, room;
};

void prove_remember(
	const struct prove *p, struct prove_history *history, const struct cursor *cursor);
struct order prove_order(const struct prove_history *history, const struct cursor *cursor);
void prove_forget(struct prove_history *history);

/* ---- a run that is edited, moved and restarted ---- */

enum { PROVE_SAVED = 8 };

struct prove_chain {
	struct prove *p;
	struct cursor cursor;
	struct prove_history history;
	uint64_t windows; /* most windows of a dataset */
	unsigned names;	  /* datasets ever added */
	bool limited;	  /* some have max_epochs, so a mix may fail */
	struct {
		uint8_t *bytes;
		size_t n;
		uint64_t next;
	} saved[PROVE_SAVED]; /* cursors for restarts, next ascending */
	unsigned saves;
	uint64_t first; /* the run does not go back before it */
};

/* Begins at 0: @identity gives epochs or samples. */
void prove_chain_begin(struct prove_chain *chain, struct prove *p, const struct cursor *identity,
	uint64_t windows);
void prove_chain_free(struct prove_chain *chain);
/* Moves the run to @next. */
void prove_chain_move(struct prove_chain *chain, uint64_t next);
/* One random edit, then an encoding and a decoding. @back: it may also go back. */
void prove_chain_edit(struct prove_chain *chain, bool back);
void prove_chain_save(struct prove_chain *chain);

#endif
