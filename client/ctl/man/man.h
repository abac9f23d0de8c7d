/* For shells and man pages: what the tables of options, commands and config keys say. */
#ifndef TOKEND_CTL_MAN_H
#define TOKEND_CTL_MAN_H

#include "client/ctl/common/ctl.h"

/* Prints the tables for pages.py, which makes the man pages from them. Returns an exit status. */
int ctl_tables(const struct ctl_command *const *commands);

/* `tokctl completion` */
extern const struct ctl_command ctl_completion;
/* Prints the words that can follow in bash's $COMP_LINE, of tokctl or tokend. Returns an exit
 * status. */
int ctl_complete(const struct ctl_command *const *commands);

/* Writes tokend's table of options in the form of tokctl's. Returns their number. */
unsigned tokend_options(struct ctl_option options[CTL_OPTIONS]);

#endif
