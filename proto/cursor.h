/*
 * The cursor: everything that says where a run is. It is a value, it belongs to the trainer.
 *
 *   identity   stream, seed, windows, and the frozen list of datasets (what must not change under a
 * run) next       the first position that no rank has taken mix        the current segment, and the
 * pending ones: a mix that was announced, or what is left of a schedule
 *
 * Every change to a run is an edit of its cursor followed by a seek; the edits below are the only
 * way into the order. Equal cursors encode to equal bytes: all ranks at one step hold the same
 * ones.
 *
 * Encoded: "tkdc", u32 format version, u64 checksum of what follows (both little-endian), then a
 * MessagePack map. A version never changes its meaning; readers keep all older ones.
 *
 * Functions that can refuse return false and fill *fault (see fault.h).
 */
#ifndef TOKEND_CURSOR_H
#define TOKEND_CURSOR_H

#include "proto/fault.h"
#include "proto/limits.h"
#include "proto/order.h"

#define CURSOR_VERSION                                                                             \
	2 /* 1 is still written for what it can hold: no limits, and one pending segment at most   \
	   */

struct cursor_dataset {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t digest;     /* of the sorted (path, tokens) list */
	uint64_t max_epochs; /* 0: no limit; see cursor_schedule() */
};

struct cursor {
	char stream[LIMIT_NAME_BYTES + 1];
	uint64_t seed;
	uint64_t seq_len, extra, stride;
	uint64_t epochs;  /* > 0: finite, every window that often; excludes samples */
	uint64_t samples; /* > 0: finite, ends there */
	uint32_t datasets;
	struct cursor_dataset *dataset; /* [datasets], owned */
	struct order_dataset *order;	/* [datasets], owned; name hash, windows, shuffle */
	uint64_t next;
	uint32_t segments; /* ≥ 1 */
	struct order_segment *
		*segment; /* [segments], owned: the current one, then the pending ones */
};

/* What a cursor begins with: one dataset as config and shards describe it. */
struct cursor_source {
	const char *name;
	double weight;
	uint64_t windows, digest;
	uint32_t block, group;
	enum order_shuffle shuffle;
	bool slide;
	uint64_t max_epochs;
};

/*
 * A planned change of the mix: from the mix before it to @weights, in @steps equal steps, the k-th
 * of which acts from from + (to - from)·k / steps, rounded down to a multiple of 1024, with the
 * units (before·(steps - k) + after·k) / steps, the missing ones one each to the largest remainders
 * (ties: lower index). At once is one step with from = to.
 */
struct cursor_step {
	uint64_t from, to; /* multiples of 1024 */
	uint32_t steps;	   /* ≥ 1, and at most (to - from) / 1024 unless it is 1 */
	const double *weights;
};

/*
 * A cursor at position 0. @identity gives stream, seed, seq_len, extra, stride, epochs and samples.
 * @steps, ascending, all ahead, are its schedule: see cursor_schedule(). On false, fault->field may
 * be "dataset NAME: weight", "schedule[2]: at" and the like. *@out is free to be passed to
 * cursor_free() either way.
 */
bool cursor_begin(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, const struct cursor_step *steps,
	uint32_t step_count, struct fault *fault);
bool cursor_copy(struct cursor *out, const struct cursor *cursor); /* false: out of memory */
void cursor_free(struct cursor *cursor);

/* One past the last position, UINT64_MAX for an endless stream. */
uint64_t cursor_end(const struct cursor *cursor);
/* The order of this cursor's run, as far as it knows it; borrows from @cursor until its next edit.
 */
struct order cursor_order(const struct cursor *cursor);

/*
 * ---- edits: on false, *cursor is as it was ----
 *
 * A dataset with max_epochs gets weight 0 from the block of 1024 on that would take it beyond; the
 * other datasets keep their ratio. Every edit of the mix below lays that out as pending segments,
 * so nobody has to think of it later; what does not fit into LIMIT_CURSOR_BYTES is refused, and a
 * position from which on no dataset would be left. A later mix may give it weight again if what is
 * left lasts for a block of that. Planned mixes that change nothing are no segments.
 */

/* Refused before the current segment and past the end. Past pending mixes makes the last of them
 * the current one. */
bool cursor_seek(struct cursor *cursor, uint64_t position, struct fault *fault);
/* Goes @samples further: those are never served. Refused past the end. */
bool cursor_skip(struct cursor *cursor, uint64_t samples, struct fault *fault);
/* A seek backwards; refused for what lies ahead. */
bool cursor_rewind(struct cursor *cursor, uint64_t position, struct fault *fault);
/* Where a mix announced now would act: the least multiple of 1024 that is ≥ next and > the current
 * segment's start. */
uint64_t cursor_mix_at(const struct cursor *cursor);
/*
 * New weights from @at on (what cursor_mix_at() says, or a later multiple of 1024). @weights has
 * one entry a dataset of the cursor. Replaces all that is pending. Refused on a stream with epochs,
 * and for a weight above 0 of a dataset whose max_epochs are served by then.
 */
bool cursor_mix(struct cursor *cursor, uint64_t at, const double *weights, struct fault *fault);
/*
 * Appends a dataset with no weight yet; a mix gives it some. Refused on a stream with epochs and
 * for a name in use.
 */
bool cursor_add(struct cursor *cursor, const struct cursor_source *source, struct fault *fault);
/* What cursor_add() wants, of dataset @d of another cursor. Borrows the name; weight is 0. */
void cursor_source(const struct cursor *cursor, uint32_t d, struct cursor_source *source);
/*
 * Takes the weight of dataset @d away from @at on, in the mix that is in force there and in all
 * that are pending after it; the others keep their ratio (units are the weights). Pending mixes
 * before @at stay. The dataset stays in the list. Refused on a stream with epochs, if it has no
 * weight from @at on, and if nothing would be left.
 */
bool cursor_remove(struct cursor *cursor, uint32_t d, uint64_t at, struct fault *fault);
/*
 * Replaces all that is pending by @steps, ascending, and, unless @max_epochs ([datasets]) is NULL,
 * the limits. Steps whose time has passed by cursor_mix_at() are left out, but for the last, which
 * acts from there. @weights is the mix from which the first step starts (a ramp that has begun
 * starts from the one that was in force then); NULL: the mix that is in force now. Refused on a
 * stream with epochs. On false, fault->index is the number of the step that "schedule[2]: at" is
 * about.
 */
bool cursor_schedule(struct cursor *cursor, const double *weights, const struct cursor_step *steps,
	uint32_t n, const uint64_t *max_epochs, struct fault *fault);

/*
 * How dataset @d with max_epochs ends by the segments of this cursor: false if it has none, or
 * weight to the end (of a stream with samples); else from *@position on it is no more served, and
 * *@unserved of the windows that its max_epochs hold, repeats counted, are left over (2^64 - 1 for
 * more than that).
 */
bool cursor_unserved(
	const struct cursor *cursor, uint32_t d, uint64_t *position, uint64_t *unserved);

/* Asserts the invariants of a cursor that has its segments. */
void cursor_check(const struct cursor *cursor);

/* Index of the dataset called @name, or -1. */
int cursor_find(const struct cursor *cursor, const char *name);

/* ---- comparing ---- */

/*
 * True if @cursor belongs to the stream as it stands now (@now: a fresh cursor of it). Order and
 * weights of the list are no part of that, and the stream may have more datasets; those that
 * @cursor serves must be there unchanged.
 */
bool cursor_belongs(const struct cursor *cursor, const struct cursor *now, struct fault *fault);
/* A number over identity, order version, mix, position, world and micro-batch: equal on all ranks
 * at one step. */
uint64_t cursor_fingerprint(const struct cursor *cursor, uint64_t world, uint64_t micro_batch);

/* ---- bytes ---- */

/* Length of the encoding written to @bytes, or 0 if it is longer than @capacity (LIMIT_CURSOR_BYTES
 * always holds one). */
size_t cursor_encode(const struct cursor *cursor, void *bytes, size_t capacity);
/* *@out is free to be passed to cursor_free() either way. Any bytes may be given. */
bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault);

#endif
