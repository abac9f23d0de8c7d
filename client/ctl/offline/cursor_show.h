/* Cursors for people and scripts: the contents of one, and how two differ. */
#ifndef TOKEND_CTL_CURSOR_SHOW_H
#define TOKEND_CTL_CURSOR_SHOW_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "proto/cursor.h"

extern const struct ctl_command ctl_cursor_show, ctl_cursor_diff;

/*
 * Prints how @b differs from @a, a difference a line. Differences that follow from one above them
 * (counts and roundings of a mix after a different one) are left out. True if they are equal.
 */
bool ctl_cursor_compare(
	struct ctl_out *out, const struct cursor *a, const struct cursor *b, bool json);

/* Units of dataset @d, 0 where the segment is older than the dataset. */
uint64_t ctl_units(const struct order_segment *segment, uint32_t d);

#endif
