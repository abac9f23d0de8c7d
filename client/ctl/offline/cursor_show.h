/* Prints a cursor, for people and for scripts. */
#ifndef TOKEND_CTL_CURSOR_SHOW_H
#define TOKEND_CTL_CURSOR_SHOW_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "proto/cursor.h"

extern const struct ctl_command ctl_cursor_show;

#endif
