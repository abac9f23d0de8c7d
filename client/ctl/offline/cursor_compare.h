/* Prints the differences between two cursors, for people and for scripts. */
#ifndef TOKEND_CTL_CURSOR_COMPARE_H
#define TOKEND_CTL_CURSOR_COMPARE_H

#include "client/ctl/common/out.h"
#include "proto/cursor.h"

/*
 * Prints how @b differs from @a, one difference per line. Leaves out differences that follow from
 * an earlier one: the counts and roundings of a mix after a different mix. True if they are equal.
 */
bool ctl_cursor_compare(
	struct ctl_out *out, const struct cursor *a, const struct cursor *b, bool json);

#endif
