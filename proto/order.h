/*
 * The order: a pure function from a position to a window of tokens, and its inverse.
 *
 * A position i is the number of a sample in the whole run, over all ranks and epochs. Three steps
 * map it to a window:
 *
 *   mix      i → (dataset, ordinal k)       a balanced tree of exact fractions over the datasets
 *   epochs   k → (epoch k / N, x = k mod N)
 *   shuffle  x → window                      a keyed bijection on [0, N), or on blocks of it
 *   part     window → window of the path     only of a dataset that is a part of its path
 *
 * Each step takes constant time and memory and has an inverse. So "which window is at i?" and "when
 * is window w of dataset d served in epoch e?" cost the same. Only the segments of the mix are
 * stored. This is order version 1: all implementations of it agree bit for bit.
 *
 * Only order_segment_*() allocate; nothing does I/O. Arithmetic is on unsigned 64-bit integers
 * modulo 2^64 unless a comment says 128.
 */
#ifndef TOKEND_ORDER_H
#define TOKEND_ORDER_H

#include "proto/fault.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORDER_VERSION 1
#define ORDER_UNITS   (UINT64_C(1) << 32) /* sum of the units of an endless stream */
#define ORDER_RUN     64		  /* consecutive windows of a path that are in one part */

/* ---- hashing ---- */

#define ORDER_GOLDEN UINT64_C(0x9E3779B97F4A7C15)
#define ORDER_MUL_1  UINT64_C(0xBF58476D1CE4E5B9)
#define ORDER_MUL_2  UINT64_C(0x94D049BB133111EB)

static inline uint64_t order_mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= ORDER_MUL_1;
	x ^= x >> 27;
	x *= ORDER_MUL_2;
	return x ^ x >> 31;
}

static inline uint64_t order_derive_n(uint64_t seed, const uint64_t *values, size_t n)
{
	uint64_t h = order_mix64(seed + ORDER_GOLDEN);

	for (size_t i = 0; i < n; i++)
		h = order_mix64((h ^ values[i]) + ORDER_GOLDEN);
	return h;
}
#define order_derive(seed, ...)                                                                    \
	order_derive_n(seed, (const uint64_t[]){__VA_ARGS__},                                      \
		sizeof((const uint64_t[]){__VA_ARGS__}) / 8)
/* FNV-1a over @n bytes of UTF-8. */
uint64_t order_name_hash(const char *name, size_t n);
/* A checksum of stored cursors, built from the same mixing. It does not resist an attacker. */
uint64_t order_checksum(const void *bytes, size_t n);
/* The digest of a dataset's shard list: order_digest_begin(number of shards), then
 * order_digest_add() for each shard in order. */
uint64_t order_digest_begin(uint64_t shards);
uint64_t order_digest_add(uint64_t digest, const char *path, uint64_t tokens);

/* ---- a keyed bijection on [0, n) ---- */

/* @n ≥ 1 and @x < @n. order_unpermute() is the inverse with the same key. */
uint64_t order_permute(uint64_t n, uint64_t key, uint64_t x);
uint64_t order_unpermute(uint64_t n, uint64_t key, uint64_t y);

/* ---- weights ---- */

/*
 * Turns @n weights into integer units that sum to ORDER_UNITS. False (FAULT_ARGUMENT): a weight is
 * negative, not finite, or too small for one unit, and fault->index is its index; or the sum is not
 * a finite number above 0, and fault->index is FAULT_NO_INDEX.
 */
bool order_units(const double *weights, uint32_t n, uint64_t *units, struct fault *fault);
/* Adds what the sum of @n rounded-down @units lacks to ORDER_UNITS, one each, to those with the
 * largest @part left over; of equals, to the first. */
void order_give_rest(uint64_t *units, const double *part, uint32_t n);

/* ---- the mix ---- */

/*
 * A stretch of a run with one mix. The arrays belong to the segment. A node [lo,hi) of the binary
 * tree over the padded list is named by its middle; phase[] is indexed by that name.
 */
struct order_segment {
	uint64_t start;	   /* first position; a multiple of LIMIT_BLOCK */
	uint32_t datasets; /* entries of units and base */
	uint32_t padded;   /* the least power of two ≥ datasets */
	uint32_t mixed;	   /* datasets with units > 0; with two or more, blocks are scrambled */
	uint64_t *units;   /* [datasets] */
	uint64_t *base;	   /* [datasets] samples served before start */
	uint64_t *phase;   /* [padded] the node's rounding, < its units where those are > 0 */
	uint64_t *prefix;  /* [padded + 1] sums of units, derived */
	/* Derived, [padded] each, at a node's middle: the part of its units that its left child
	 * has, and its phase as a part of its units, both in 2^-64 and rounded down. */
	uint64_t *part, *part_phase;
};

/* The first segment of a stream. @units must sum to more than 0 and less than 2^64. NULL: they do
 * not, or out of memory. */
struct order_segment *order_segment_first(const uint64_t *units, uint32_t datasets);
/* The segment after @before, from @start on, a later multiple of LIMIT_BLOCK. Datasets may only be
 * appended. NULL: the arguments break these rules, or out of memory. */
struct order_segment *order_segment_next(const struct order_segment *before, uint64_t start,
	const uint64_t *units, uint32_t datasets);
/* A segment from its stored parts. Copies the arrays; @phase has order_padded(@datasets) entries.
 * NULL: out of memory, or not a segment (FAULT_CURSOR): the units sum to 0 or to 2^64 or more, a
 * phase is not below its node's units, or @start is within a block. */
struct order_segment *order_segment_load(uint64_t start, const uint64_t *units,
	const uint64_t *base, const uint64_t *phase, uint32_t datasets, struct fault *fault);
struct order_segment *order_segment_copy(const struct order_segment *segment);
void order_segment_free(struct order_segment *segment);
/* Asserts the invariants above, in time proportional to the number of datasets. */
void order_segment_check(const struct order_segment *segment);
uint32_t order_padded(uint32_t datasets);

/* Maps the @j-th sample of the segment, before blocks are scrambled, to its dataset and ordinal;
 * and back. order_join() returns false if the dataset has no units here, or if @j would be 2^64 or
 * more. */
void order_split(
	const struct order_segment *segment, uint64_t j, uint32_t *dataset, uint64_t *ordinal);
bool order_join(
	const struct order_segment *segment, uint32_t dataset, uint64_t ordinal, uint64_t *j);

/* ---- the whole function ---- */

enum order_shuffle {
	ORDER_NONE,   /* in order */
	ORDER_GLOBAL, /* over the whole dataset */
	ORDER_BLOCK,  /* blocks of windows shuffled, then windows inside groups of blocks */
};
extern const char *const order_shuffles[]; /* their names, then NULL */

/* Which windows of its path a dataset has. All 0: every one. */
struct order_part {
	uint64_t of;	/* A, the windows of the path */
	uint64_t key;	/* of the permutation of the runs */
	uint64_t first; /* X0, the place of the part's first run in it */
	uint64_t gap;	/* windows of the part before the end of a short run; UINT64_MAX: none */
};

struct order_dataset {
	uint64_t name_hash;
	uint64_t windows; /* N, of the part */
	uint32_t block;	  /* B, windows a block; used by ORDER_BLOCK, in [1, 2^31] */
	uint32_t group;	  /* K, blocks a group; likewise */
	enum order_shuffle shuffle;
	bool slide; /* windows begin at other tokens in each epoch: order_slide() */
	struct order_part part;
};

/* The runs of a path; the last one may be short. */
static inline uint64_t order_runs(uint64_t windows)
{
	return windows / ORDER_RUN + (windows % ORDER_RUN != 0);
}

/*
 * Makes @d the share [@lo, @hi) / ORDER_UNITS of the @of windows of its path: sets windows and
 * part. Shares that do not overlap have no window in common. False: not one run is in it.
 */
bool order_part(struct order_dataset *d, uint64_t of, uint64_t lo, uint64_t hi);
/* Writes a part as a config has it, "[0, 0.9]". Returns @text. */
enum { ORDER_PART_BYTES = 40 };
char *order_part_text(uint64_t lo, uint64_t hi, char text[ORDER_PART_BYTES]);

/* The windows of the path: windows are numbered in [0, A). */
static inline uint64_t order_path_windows(const struct order_dataset *d)
{
	return d->part.of ? d->part.of : d->windows;
}

struct order {
	uint64_t seed;
	uint64_t end;	/* T: positions from T on are padding; 0: endless */
	bool exact_end; /* `epochs`: the last block, cut off at the end, is scrambled in itself */
	uint32_t datasets;
	uint32_t segments;
	const struct order_dataset *dataset;	    /* [datasets] */
	const struct order_segment *const *segment; /* [segments] ascending starts */
};

struct order_place {
	uint32_t dataset;
	uint64_t epoch;
	uint64_t window; /* number in the path, of one that the dataset has */
};

/* Asserts the invariants of the lists, not of each segment. */
void order_check(const struct order *order);
/* Finds the window at @position. False: it is before the first segment, or at or past the end. */
bool order_at(const struct order *order, uint64_t position, struct order_place *place);
/* Finds the position that serves @place. False: these segments never serve it. */
bool order_when(const struct order *order, const struct order_place *place, uint64_t *position);

/* Maps the @x-th sample of an epoch, below N, to its window, and back. UINT64_MAX: the dataset does
 * not have @window. */
uint64_t order_window(
	const struct order_dataset *dataset, uint64_t seed, uint64_t epoch, uint64_t x);
uint64_t order_unwindow(
	const struct order_dataset *dataset, uint64_t seed, uint64_t epoch, uint64_t window);

/* The tokens, 0 to @slack, by which the windows of shard number @shard begin later in @epoch. 0
 * unless the dataset slides. */
uint64_t order_slide(const struct order_dataset *dataset, uint64_t seed, uint64_t epoch,
	uint64_t shard, uint64_t slack);

/* The number of windows in a shard of @tokens, and the tokens left after the last one. */
uint64_t order_shard_windows(uint64_t tokens, uint64_t window_tokens, uint64_t stride);
uint64_t order_shard_slack(uint64_t tokens, uint64_t window_tokens, uint64_t stride);

/* ---- ranks ---- */

/* The first position of micro-batch @m of @rank after a cursor at @next; at most UINT64_MAX. */
uint64_t order_rank_position(
	uint64_t next, uint64_t m, uint64_t rank, uint64_t world, uint64_t micro_batch);
/* The position after every rank has taken one more micro-batch. @step is world × micro_batch, @end
 * at most 2^64 - 1. */
static inline uint64_t order_rank_next(uint64_t next, uint64_t step, uint64_t end)
{
	return end - next > step ? next + step : end;
}

#endif
