/* Subcommands that talk to a daemon. */
#ifndef TOKEND_CTL_ONLINE_COMMANDS_H
#define TOKEND_CTL_ONLINE_COMMANDS_H

#include "client/ctl/common/arguments.h"

extern const struct ctl_command ctl_cache, ctl_cat, ctl_start, ctl_status, ctl_stop;
extern const struct ctl_command ctl_metrics, ctl_serve;
extern const struct ctl_command ctl_mix, ctl_skip, ctl_checkpoint, ctl_drain, ctl_rescale;

#endif
