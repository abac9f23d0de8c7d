/*
 * The cursor: everything that says where a run is. It is a value, it belongs to the trainer.
 *
 *   identity   stream, seed, windows, and the frozen list of datasets (what must not change under a run)
 *   next       the first position that no rank has taken
 *   mix        the current segment, and at most one pending one
 *
 * Every change to a run is an edit of its cursor followed by a seek; the edits below are the only way into
 * the order. Equal cursors encode to equal bytes: all ranks at one step hold the same ones.
 *
 * Encoded: "tkdc", u32 format version, u64 checksum of what follows (both little-endian), then a MessagePack
 * map. A version never changes its meaning; readers keep all older ones.
 *
 * Functions that can refuse return false and put one line (field, value, what would be right) into *why.
 */
#ifndef TOKEND_CURSOR_H
#define TOKEND_CURSOR_H

#include "limits.h"
#include "order.h"

#define CURSOR_VERSION 1

struct cursor_why {
	char field[80]; /* e.g. "seed", "dataset web: windows" */
	char text[400];
};

struct cursor_dataset {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t digest; /* of the sorted (path, tokens) list */
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
	struct order_segment *segment[2]; /* current, pending or NULL; owned */
};

/* What a cursor begins with: one dataset as config and shards describe it. */
struct cursor_source {
	const char *name;
	double weight;
	uint64_t windows, digest;
	uint32_t block, group;
	enum order_shuffle shuffle;
	bool slide;
};

/*
 * A cursor at position 0. @identity gives stream, seed, seq_len, extra, stride, epochs and samples. On false,
 * why->field may be "dataset NAME: weight" and the like. *@out is free to be passed to cursor_free() either
 * way.
 */
bool cursor_begin(struct cursor *out, const struct cursor *identity, const struct cursor_source *sources,
	uint32_t n, struct cursor_why *why);
bool cursor_copy(struct cursor *out, const struct cursor *cursor); /* false: out of memory */
void cursor_free(struct cursor *cursor);

/* One past the last position, UINT64_MAX for an endless stream. */
uint64_t cursor_end(const struct cursor *cursor);
/* The order of this cursor's run, as far as it knows it; borrows from @cursor until its next edit. */
struct order cursor_order(const struct cursor *cursor);

/* ---- edits: on false, *cursor is as it was ---- */

/* Refused before the current segment and past the end. Past a pending mix makes that the current one. */
bool cursor_seek(struct cursor *cursor, uint64_t position, struct cursor_why *why);
/* Where a mix announced now would act: the least multiple of 1024 that is ≥ next and > the current segment's
 * start. */
uint64_t cursor_mix_at(const struct cursor *cursor);
/*
 * New weights from @at on (a position that cursor_mix_at() allows, or a later multiple of 1024). @weights has
 * one entry a dataset of the cursor. Replaces a pending mix. Refused on a stream with epochs.
 */
bool cursor_mix(struct cursor *cursor, uint64_t at, const double *weights, struct cursor_why *why);
/* Appends a dataset with no weight yet; a mix gives it some. Refused on a stream with epochs and for a name
 * in use. */
bool cursor_add(struct cursor *cursor, const struct cursor_source *source, struct cursor_why *why);
/* Index of the dataset called @name, or -1. */
int cursor_find(const struct cursor *cursor, const char *name);

/* ---- comparing ---- */

/*
 * True if @cursor belongs to the stream as it stands now (@now: a fresh cursor of it). Order and weights of
 * the list are no part of that, and the stream may have more datasets; those that @cursor serves must be
 * there unchanged.
 */
bool cursor_belongs(const struct cursor *cursor, const struct cursor *now, struct cursor_why *why);
/* A number over identity, order version, mix, position, world and micro-batch: equal on all ranks at one
 * step. */
uint64_t cursor_fingerprint(const struct cursor *cursor, uint64_t world, uint64_t micro);

/* ---- bytes ---- */

/* Length of the encoding written to @bytes, or 0 if it is longer than @capacity (LIMIT_CURSOR_BYTES always
 * holds one). */
size_t cursor_encode(const struct cursor *cursor, void *bytes, size_t capacity);
/* *@out is free to be passed to cursor_free() either way. Any bytes may be given. */
bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct cursor_why *why);

#endif
