/*
 * The cursor: the state of a run. It is a value, and it belongs to the trainer.
 *
 *   identity   stream, seed, windows, and the list of datasets: what must not change under a run
 *   next       the first position that no rank has taken
 *   mix        the current segment and the pending ones: an announced mix, or the rest of a
 * schedule
 *
 * Every change to a run is an edit of its cursor followed by a seek; the edits below are the only
 * way into the order. Equal cursors encode to equal bytes, so at one step all ranks hold the same
 * bytes.
 *
 * Encoded: "tkdc", u32 format version, u64 checksum of the rest (both little-endian), then a
 * MessagePack map. The meaning of a version never changes; readers keep all older ones.
 *
 * A function that fails returns false and fills *fault with FAULT_CURSOR, unless it is out of
 * memory. fault->field is the member that is wrong: "next", "dataset web: weight".
 */
#ifndef TOKEND_CURSOR_H
#define TOKEND_CURSOR_H

#include "proto/fault.h"
#include "proto/limits.h"
#include "proto/order.h"

/* Version 1 is still written for a cursor without limits and with at most one pending segment. */
#define CURSOR_VERSION 2

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
	uint32_t segments;		/* ≥ 1 */
	struct order_segment **segment; /* [segments], owned: the current one, then the pending */
};

/* One dataset of a new cursor, as config and shards describe it. */
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
 * A planned change of the mix: from the mix before it to @weights, in @steps equal steps. The k-th
 * acts from position from + (to - from)·k / steps, rounded down to a multiple of 1024. Its units
 * are (before·(steps - k) + after·k) / steps; the missing ones go to the largest remainders, one
 * each (ties: lower index). A change at once is one step with from = to.
 */
struct cursor_step {
	uint64_t from, to; /* multiples of 1024 */
	uint32_t steps;	   /* ≥ 1, and at most (to - from) / 1024 unless it is 1 */
	const double *weights;
};

/*
 * A cursor at position 0. @identity gives stream, seed, seq_len, extra, stride, epochs and samples.
 * @steps, ascending and after 0, are its schedule: see cursor_schedule(). On failure *@out may
 * still be passed to cursor_free().
 */
bool cursor_begin(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, const struct cursor_step *steps,
	uint32_t step_count, struct fault *fault);
bool cursor_copy(struct cursor *out, const struct cursor *cursor); /* false: out of memory */
void cursor_free(struct cursor *cursor);

/* One past the last position, UINT64_MAX for an endless stream. */
uint64_t cursor_end(const struct cursor *cursor);
/* The order of this cursor's run, from its current segment on. Borrows from @cursor until its next
 * edit. */
struct order cursor_order(const struct cursor *cursor);

/*
 * ---- edits: on failure *cursor is unchanged ----
 *
 * A dataset with max_epochs gets weight 0 from the block of 1024 on that would exceed them; the
 * other datasets keep their ratio. Every edit of the mix below lays these changes out as pending
 * segments. It fails if they do not fit into LIMIT_CURSOR_BYTES, or if from some position on no
 * dataset would be left. A later mix may give such a dataset weight again, if its remaining windows
 * last for a block. Planned mixes that change nothing do not become segments.
 */

/* Fails before the current segment and after the end. A seek past pending mixes makes the last of
 * them the current one. */
bool cursor_seek(struct cursor *cursor, uint64_t position, struct fault *fault);
/* Moves forwards by @samples, which are never served. Fails after the end. */
bool cursor_skip(struct cursor *cursor, uint64_t samples, struct fault *fault);
/* A seek backwards. Fails for a position ahead. */
bool cursor_rewind(struct cursor *cursor, uint64_t position, struct fault *fault);
/* Where a mix that is announced now acts: the least multiple of 1024 that is ≥ next and after the
 * start of the current segment. 0: there is none below 2^64. */
uint64_t cursor_mix_at(const struct cursor *cursor);
/*
 * New weights from @at on: cursor_mix_at(), or a later multiple of 1024. @weights has one entry a
 * dataset of the cursor. Replaces all pending mixes. Fails on a stream with epochs, and for a
 * weight above 0 of a dataset whose max_epochs are served by then.
 */
bool cursor_mix(struct cursor *cursor, uint64_t at, const double *weights, struct fault *fault);
/*
 * Appends a dataset without weight; a mix gives it some. Fails on a stream with epochs, and for a
 * name that is in use.
 */
bool cursor_add(struct cursor *cursor, const struct cursor_source *source, struct fault *fault);
/* The argument of cursor_add() for dataset @d of another cursor. Borrows the name; weight is 0. */
void cursor_source(const struct cursor *cursor, uint32_t d, struct cursor_source *source);
/*
 * Takes the weight of dataset @d away from @at on, in the mix that is in force there and in all
 * later pending ones; the other datasets keep their ratio. Pending mixes before @at stay, and the
 * dataset stays in the list. Fails on a stream with epochs, if the dataset has no weight from @at
 * on, and if nothing would be left.
 */
bool cursor_remove(struct cursor *cursor, uint32_t d, uint64_t at, struct fault *fault);
/*
 * Replaces all pending mixes by @steps, ascending, and, unless @max_epochs ([datasets]) is NULL,
 * the limits. Of the steps before cursor_mix_at() only the last is kept, and acts from there.
 * @weights is the mix from which the first step starts: a ramp that has begun starts from the mix
 * that was in force then. NULL: the mix that is in force now. Fails on a stream with epochs.
 * fault->index is the number of the step if fault->field begins with "schedule[".
 */
bool cursor_schedule(struct cursor *cursor, const double *weights, const struct cursor_step *steps,
	uint32_t n, const uint64_t *max_epochs, struct fault *fault);

/*
 * How dataset @d with max_epochs ends by the segments of this cursor. From *@position on it is not
 * served any more; *@unserved is the number of windows, repeats counted, that are left of its
 * max_epochs then (at most 2^64 - 1). False: it has no max_epochs, or has weight until the end of
 * the stream.
 */
bool cursor_unserved(
	const struct cursor *cursor, uint32_t d, uint64_t *position, uint64_t *unserved);

/* Asserts the invariants of a cursor that has its segments. */
void cursor_check(const struct cursor *cursor);

/* Index of the dataset called @name, or -1. */
int cursor_find(const struct cursor *cursor, const char *name);

/* ---- comparing ---- */

/*
 * True if @cursor belongs to the stream as it is now (@now: a fresh cursor of it). The order and
 * the weights of the datasets do not matter, and the stream may have more datasets. The datasets
 * that
 * @cursor serves must be there unchanged.
 */
bool cursor_belongs(const struct cursor *cursor, const struct cursor *now, struct fault *fault);
/* A number over identity, order version, mix, position, world and micro-batch: equal on all ranks
 * at one step. */
uint64_t cursor_fingerprint(const struct cursor *cursor, uint64_t world, uint64_t micro_batch);

/* ---- bytes ---- */

/* Length of the encoding written to @bytes, or 0 if it is longer than @capacity. LIMIT_CURSOR_BYTES
 * are always enough. */
size_t cursor_encode(const struct cursor *cursor, void *bytes, size_t capacity);
/* @bytes may be anything. On failure *@out may still be passed to cursor_free(). */
bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault);

#endif
