/* Functions that the files of the cursor share. */
#ifndef TOKEND_CURSOR_PRIVATE_H
#define TOKEND_CURSOR_PRIVATE_H

#include "proto/cursor.h"
#include "proto/order_private.h"

/* ---- cursor.c ---- */

/* Fills @fault for field "dataset NAME: WHAT"; always false. */
__attribute__((format(printf, 4, 5))) bool cursor_refuse_dataset(
	struct fault *fault, const char *name, const char *what, const char *text, ...);

/* Fills *@out with the identity and the datasets, validated, and no segment. Free it with
 * cursor_free(), also after a failure. */
bool cursor_identity(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, struct fault *fault);
/* Units of a stream with epochs: epochs × windows of each dataset. */
bool cursor_epoch_units(const struct cursor *cursor, uint64_t *units, struct fault *fault);

/* Appends @segment, which then belongs to the cursor; frees it on failure. False: out of memory, or
 * @segment is NULL. */
bool cursor_append(struct cursor *cursor, struct order_segment *segment);

/* Ends an edit of a copy: @done, it replaces the cursor; otherwise it is freed. Returns @done. */
bool cursor_replace(struct cursor *cursor, struct cursor *edited, bool done);

/* Drops the first @n segments. */
void cursor_drop(struct cursor *cursor, uint32_t n);
/* Drops the oldest past segments until the rest fits into LIMIT_CURSOR_BYTES, at any position. */
void cursor_fit(struct cursor *cursor);

/* Upper bounds on the encoding at any position of the run: as it is, with one segment, and of each
 * more. */
size_t cursor_bytes_most(const struct cursor *cursor);
size_t cursor_bytes_one(const struct cursor *cursor);
size_t cursor_bytes_more(const struct order_segment *segment);

/* ---- cursor_mix.c ---- */

/* [datasets] weights from a position on. */
struct cursor_point {
	uint64_t at;
	double *weights;
};

bool cursor_units(
	const struct cursor *cursor, const double *weights, uint64_t *units, struct fault *fault);
/*
 * Replaces all pending mixes by @points, ascending and ahead, and by the mixes that follow from
 * max_epochs. A cursor without a segment gets its first one, too, from a point at 0. @asked: the
 * last point comes from an operator, so it becomes a segment even if it changes nothing, and a
 * weight that max_epochs forbids is an error instead of being dropped. On failure *cursor is
 * unchanged.
 */
bool cursor_lay_out(struct cursor *cursor, const struct cursor_point *points, uint32_t n,
	bool asked, struct fault *fault);

#endif
