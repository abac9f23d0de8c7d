/*
 * The cursor: the state of a run. It is a value, and it belongs to the trainer.
 *
 *   identity   stream, seed, windows and datasets: they cannot change during a run
 *   next       the first position that no rank has taken
 *   mixes      one list of segments: past, current (which contains next) and planned
 *
 * Every change to a run is an edit of its cursor, then a seek; the edits below are the only way
 * into the order. Equal histories encode to equal bytes, so at one step all ranks have the same
 * bytes.
 *
 * A seek changes `next` alone. Positions before it were served, those after it are planned. Only
 * an edit of the mix drops the oldest segments, when all of them no longer fit into
 * LIMIT_CURSOR_BYTES; then the first segment that is left begins after position 0.
 *
 * Encoding: "tkdc", u32 format version, u64 checksum of the rest (both little-endian), then a
 * MessagePack map.
 *
 * Functions that fail return false and fill *fault: FAULT_CURSOR, or FAULT_MEMORY. fault->field is
 * the member that is wrong: "next", "dataset web: weight".
 */
#ifndef TOKEND_CURSOR_H
#define TOKEND_CURSOR_H

#include "proto/fault.h"
#include "proto/limits.h"
#include "proto/nearest.h"
#include "proto/order.h"

#define CURSOR_VERSION 4

struct cursor_dataset {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t digest;     /* of the sorted (path, tokens) list, and of its part */
	uint64_t max_epochs; /* 0: no limit; see cursor_schedule() */
	uint64_t lo, hi;     /* of its part, see order_part(); the whole: 0, ORDER_UNITS */
};

struct cursor {
	char stream[LIMIT_NAME_BYTES + 1];
	uint64_t seed;
	uint64_t seq_len, extra, stride;
	uint64_t epochs;  /* > 0: finite, serves each window so many times; excludes samples */
	uint64_t samples; /* > 0: finite, ends at this position */
	uint32_t datasets;
	struct cursor_dataset *dataset; /* [datasets], owned */
	struct order_dataset *order;	/* [datasets], owned; name hash, windows, shuffle */
	uint64_t next;
	uint32_t segments;		/* ≥ 1 */
	struct order_segment **segment; /* [segments], owned, ascending; the first: start ≤ next */
};

/* One dataset of a new cursor. */
struct cursor_source {
	const char *name;
	double weight;
	uint64_t windows, digest; /* of its path; of its shards and its part */
	uint32_t block, group;
	enum order_shuffle shuffle;
	bool slide;
	uint64_t max_epochs;
	uint64_t lo, hi; /* of its part; hi = 0: the whole, as 0, ORDER_UNITS */
};

/*
 * A planned change of the mix: from the mix before it to @weights, in @steps equal steps. Step k
 * acts from position from + (to - from)·k / steps on, rounded down to a multiple of 1024. Its units
 * are (before·(steps - k) + after·k) / steps, rounded down; the largest remainders get the missing
 * units, one each (ties: lower index). A change at once is one step with from = to.
 */
struct cursor_step {
	uint64_t from, to; /* multiples of 1024 */
	uint32_t steps;	   /* ≥ 1, and at most (to - from) / 1024 unless it is 1 */
	const double *weights;
};

/* Checks @steps of an endless stream before its shards are known. False: @fault, as that of
 * cursor_schedule(). */
bool cursor_check_steps(
	const struct cursor_step *steps, uint32_t n, uint32_t datasets, struct fault *fault);
/*
 * Makes a cursor at position 0. @identity gives stream, seed, seq_len, extra, stride, epochs and
 * samples. @steps, ascending and after 0, are its schedule: see cursor_schedule(). Free *@out with
 * cursor_free(), also after a failure.
 */
bool cursor_begin(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, const struct cursor_step *steps,
	uint32_t step_count, struct fault *fault);
bool cursor_copy(struct cursor *out, const struct cursor *cursor); /* false: out of memory */
void cursor_free(struct cursor *cursor);

/* One past the last position, UINT64_MAX for an endless stream. */
uint64_t cursor_end(const struct cursor *cursor);
/* The number of past segments; segment[cursor_past()] is the current one, which is also that of
 * cursor_now(). */
uint32_t cursor_past(const struct cursor *cursor);
const struct order_segment *cursor_now(const struct cursor *cursor);
/* The order of the run from its current segment on, and from its first one on. They borrow from
 * @cursor: valid until the next edit. */
struct order cursor_order(const struct cursor *cursor);
struct order cursor_history(const struct cursor *cursor);

/*
 * ---- edits: on failure *cursor is unchanged ----
 *
 * A dataset with max_epochs gets weight 0 from the first block of 1024 that would exceed them; the
 * other datasets keep their ratio. Every edit of the mix below makes these changes pending
 * segments. It fails if they do not fit into LIMIT_CURSOR_BYTES, or if from some position on no
 * dataset would be left. A later mix may give such a dataset a weight again, if its remaining
 * windows last for a block. Planned mixes that change nothing do not become segments.
 *
 * "Pending" are the segments after the current one.
 */

/* Fails for a position before the first segment or past the end. */
bool cursor_seek(struct cursor *cursor, uint64_t position, struct fault *fault);
/* Moves forwards by @samples, which are never served. Fails past the end. */
bool cursor_skip(struct cursor *cursor, uint64_t samples, struct fault *fault);
/* A seek backwards. Fails for a position ahead. */
bool cursor_rewind(struct cursor *cursor, uint64_t position, struct fault *fault);
/* The first position of a mix that is announced now: the least multiple of 1024 that is ≥ next and
 * after the start of the current segment. 0: there is none below 2^64. */
uint64_t cursor_mix_at(const struct cursor *cursor);
/*
 * Sets new weights from @at on, which is cursor_mix_at() or a later multiple of 1024. @weights has
 * one entry for each dataset of the cursor. Replaces all pending mixes. Fails on a stream with
 * epochs, and for a weight above 0 of a dataset whose max_epochs are served by then.
 */
bool cursor_mix(struct cursor *cursor, uint64_t at, const double *weights, struct fault *fault);
/*
 * Appends a dataset with weight 0; cursor_mix() can change that. Fails on a stream with epochs, and
 * for a name that is in use.
 */
bool cursor_add(struct cursor *cursor, const struct cursor_source *source, struct fault *fault);
/* Fills *@source from dataset @d, for cursor_add() to another cursor. The name is borrowed; the
 * weight is 0. */
void cursor_source(const struct cursor *cursor, uint32_t d, struct cursor_source *source);
/*
 * Sets the weight of dataset @d to 0 from @at on, in the mix that is in force there and in all
 * later pending ones; the other datasets keep their ratio. Pending mixes before @at stay, and the
 * dataset stays in the list. Fails on a stream with epochs, if the dataset has no weight from @at
 * on, and if no dataset would be left.
 */
bool cursor_remove(struct cursor *cursor, uint32_t d, uint64_t at, struct fault *fault);
/*
 * Replaces all pending mixes by @steps, ascending, and the datasets' limits by @max_epochs
 * ([datasets]; NULL: they stay). Of the steps before cursor_mix_at() only the last is kept, and
 * acts from there. @weights is the mix before the first step, from which a ramp starts; NULL: the
 * mix that is in force now. Fails on a stream with epochs. fault->index is the number of the step
 * if fault->field begins with "schedule[".
 */
bool cursor_schedule(struct cursor *cursor, const double *weights, const struct cursor_step *steps,
	uint32_t n, const uint64_t *max_epochs, struct fault *fault);

/* One of the edits above as a value, for programs, operators and files. Datasets have names. */
enum cursor_edit_kind {
	CURSOR_SEEK,
	CURSOR_SKIP,
	CURSOR_REWIND,
	CURSOR_MIX,    /* datasets that are not named get weight 0 */
	CURSOR_ADD,    /* without names: all that the stream has and the cursor lacks */
	CURSOR_REMOVE, /* one name */
};
#define CURSOR_SOON UINT64_MAX /* cursor_mix_at() */

struct cursor_edit {
	enum cursor_edit_kind kind;
	uint64_t number; /* seek, rewind: a position; skip: samples; mix, remove: a position, or
			    CURSOR_SOON */
	uint32_t names;
	const char *const *name; /* [names] */
	const double *weight;	 /* [names], of a mix */
	/* A cursor of the stream that has the datasets to add: those of CURSOR_ADD, and those that
	 * a mix names and the cursor lacks. NULL: there are none. */
	const struct cursor *stream;
};

/* The first by name of the datasets that @edit names and @cursor lacks; NULL: none. */
const char *cursor_missing(const struct cursor *cursor, const struct cursor_edit *edit);
/* Applies @edit. Sets *@acts_from to the first position at which the order differs: of a seek, skip
 * or rewind, the new position. The result does not depend on the order of the names. */
bool cursor_apply(struct cursor *cursor, const struct cursor_edit *edit, uint64_t *acts_from,
	struct fault *fault);

/* Finds where max_epochs end dataset @d: it is not served from *@position on, and *@unserved of the
 * windows of its max_epochs are never served (repeats counted; at most 2^64 - 1). False: it has no
 * max_epochs, or has a weight until the end of the stream. */
bool cursor_unserved(
	const struct cursor *cursor, uint32_t d, uint64_t *position, uint64_t *unserved);

/* Asserts the invariants of a cursor that has its segments. */
void cursor_check(const struct cursor *cursor);

/* Index of the dataset called @name, or -1. */
int cursor_find(const struct cursor *cursor, const char *name);
/* Writes the datasets' names and the one that @name may mean, see nearest_list(). Returns @list. */
char *cursor_list_datasets(
	const struct cursor *cursor, const char *name, char list[NEAREST_LIST_BYTES]);

/* ---- comparing ---- */

/* True if @cursor belongs to the stream as it is now (@now: a new cursor of it). The stream must
 * have all datasets that @cursor serves now or later, unchanged. Without epochs it may have more;
 * their order and weights do not matter. */
bool cursor_belongs(const struct cursor *cursor, const struct cursor *now, struct fault *fault);
/* A hash of identity, order version, current and pending mixes, position, world and micro-batch. At
 * one step it is equal on all ranks. */
uint64_t cursor_fingerprint(const struct cursor *cursor, uint64_t world, uint64_t micro_batch);

/* ---- bytes ---- */

/* Writes the encoding to @bytes. Returns its length, or 0 if it is longer than @capacity.
 * LIMIT_CURSOR_BYTES are always enough. */
size_t cursor_encode(const struct cursor *cursor, void *bytes, size_t capacity);
/* The same at the start of the first segment: equal for cursors that differ only in position. */
size_t cursor_encode_mixes(const struct cursor *cursor, void *bytes, size_t capacity);
/* Whether bytes begin like a cursor of a version that is known here. Looks at CURSOR_HEAD_BYTES. */
enum { CURSOR_HEAD_BYTES = 17 };
bool cursor_begins(const void *bytes, size_t n);
/* The length of the cursor that begins the @n bytes, by its encoding alone. 0: none does, or it is
 * longer than @n. */
size_t cursor_length(const void *bytes, size_t n);
/* Decodes any @n bytes, or fails. Free *@out with cursor_free(), also after a failure. */
bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault);
/* Writes @cursor as one JSON object, and a final 0, to @json. Returns the length without the 0, or
 * 0 if @capacity is too small. CURSOR_JSON_BYTES are enough for every cursor. */
enum { CURSOR_JSON_BYTES = 4 << 20 };
size_t cursor_json(const struct cursor *cursor, char *json, size_t capacity);

#endif
