/* Synopses and help, made from the tables of options. */
#ifndef TOKEND_CTL_HELP_H
#define TOKEND_CTL_HELP_H

#include "client/ctl/common/arguments.h"

#include <stdio.h>

/* "tokctl plan STREAM -c FILE [--json]", without a newline. */
void ctl_synopsis(FILE *to, const struct ctl_command *command);
/* The range and the preset of an option, "1 to 3600; default: 60", or "". */
void ctl_range(const struct ctl_option *o, char *text, size_t bytes);
/* The text of `--help`. */
void ctl_help(FILE *to, const struct ctl_command *command);
/* A line for each command. @commands ends with NULL. */
void ctl_help_all(FILE *to, const struct ctl_command *const *commands);

#endif
