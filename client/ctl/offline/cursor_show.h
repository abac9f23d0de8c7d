/* Prints a cursor, or the differences between two, for people and for scripts. */
#ifndef TOKEND_CTL_CURSOR_SHOW_H
#define TOKEND_CTL_CURSOR_SHOW_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "proto/cursor.h"

extern const struct ctl_command ctl_cursor_show;

/*
 * Prints how @b differs from @a, one difference per line. Leaves out differences that follow from
 * an earlier one: the counts and roundings of a mix after a different mix. True if they are equal.
 */
bool ctl_cursor_compare(
	struct ctl_out *out, const struct cursor *a, const struct cursor *b, bool json);

/* Weight of dataset @d in units; 0 if the segment is older than the dataset. */
uint64_t ctl_units(const struct order_segment *segment, uint32_t d);

#endif
