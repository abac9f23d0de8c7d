/* Man pages and completions, made from the tables that parse options and config keys. */
#ifndef TOKEND_CTL_MAN_H
#define TOKEND_CTL_MAN_H

#include "client/ctl/common/arguments.h"

/* Prints "tokctl.1", "tokend.8" or "tokend.yaml.5" to stdout. Returns an exit status. */
int ctl_man(const struct ctl_command *const *commands, const char *page);
/* Prints "tokctl.bash", "tokend.bash", "_tokctl" or "_tokend" (zsh) to stdout. Returns an exit
 * status. */
int ctl_complete(const struct ctl_command *const *commands, const char *file);

#endif
