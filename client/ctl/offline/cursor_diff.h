/* tokctl cursor diff. */
#ifndef TOKEND_CTL_CURSOR_DIFF_H
#define TOKEND_CTL_CURSOR_DIFF_H

#include "client/ctl/common/arguments.h"

extern const struct ctl_command ctl_cursor_diff;

#endif
