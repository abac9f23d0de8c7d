/* The parts of `tokctl cursor`. */
#ifndef TOKEND_CTL_CURSOR_H
#define TOKEND_CTL_CURSOR_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/emit.h"
#include "proto/cursor.h"

extern const struct ctl_command ctl_cursor_show, ctl_cursor_diff;

/*
 * Prints how @b differs from @a, one difference per line. Leaves out differences that follow from
 * an earlier one: the counts and roundings of a mix after a different mix. True if they are equal.
 */
bool ctl_cursor_compare(struct emit *e, const struct cursor *a, const struct cursor *b);
/* Writes "web 70.000000 %, code 30.000000 %". Returns @text. */
enum { CTL_MIX_BYTES = LIMIT_DATASETS * (LIMIT_NAME_BYTES + 16) };
char *ctl_mix_text(const struct cursor *c, const struct order_segment *s, char text[CTL_MIX_BYTES]);

#endif
