/* Prints a cursor, for people and for scripts. */
#ifndef TOKEND_CTL_CURSOR_SHOW_H
#define TOKEND_CTL_CURSOR_SHOW_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "proto/cursor.h"

extern const struct ctl_command ctl_cursor_show;

/* Weight of dataset @d in units; 0 if the segment is older than the dataset. */
uint64_t ctl_units(const struct order_segment *segment, uint32_t d);

struct share {
	char text[32]; /* "70.000000 %" */
};

struct share ctl_share(const struct order_segment *segment, uint32_t d);

#endif
