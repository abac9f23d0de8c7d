/* What cursor.c and cursor_bytes.c share. */
#ifndef TOKEND_CURSOR_PRIVATE_H
#define TOKEND_CURSOR_PRIVATE_H

#include "cursor.h"

/* Fills @why; always false. */
__attribute__((format(printf, 3, 4))) bool cursor_refuse(
	struct cursor_why *why, const char *field, const char *text, ...);
bool cursor_refuse_memory(struct cursor_why *why);

/* Identity and datasets, checked; no segment yet. *@out is free to be passed to cursor_free() either way. */
bool cursor_identity(struct cursor *out, const struct cursor *identity, const struct cursor_source *sources,
	uint32_t n, struct cursor_why *why);
/* Units of a stream with epochs: E windows of each dataset's own number, T in all. */
bool cursor_epoch_units(const struct cursor *cursor, uint64_t *units, struct cursor_why *why);

/* Takes over @segment as the last pending one, freeing it on failure. False: out of memory, or it is NULL. */
bool cursor_append(struct cursor *cursor, struct order_segment *segment);

#endif
