/* Subcommands that need no daemon. */
#ifndef TOKEND_CTL_OFFLINE_COMMANDS_H
#define TOKEND_CTL_OFFLINE_COMMANDS_H

#include "client/ctl/common/arguments.h"

extern const struct ctl_command ctl_plan, ctl_when, ctl_cost, ctl_inspect, ctl_manifest, ctl_pack,
	ctl_cursor, ctl_verify;

#endif
