/*
 * Arguments of subcommands.
 */
#ifndef TOKEND_CTL_ARGUMENTS_H
#define TOKEND_CTL_ARGUMENTS_H

#include "client/ctl/common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* How subcommands are called. */
struct ctl_synopsis {
	const char *name, *arguments, *help;
};

enum { CTL_COMMANDS = 14 };

extern const struct ctl_synopsis ctl_synopses[CTL_COMMANDS];

/* An error of the command line and how @command is called; always CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(const char *command, const char *text, ...);

/* One of value, flag and list is set. An option given twice is refused, but for lists. */
struct ctl_option {
	const char *name; /* "--name" */
	char letter;	  /* "-c", or 0 */
	const char **value;
	bool *flag;
	const char **list; /* argc entries are enough */
	unsigned *count;
};

enum { CTL_OPTIONS = 24 }; /* in one table at most */

/*
 * Options may stand anywhere. Returns how many other arguments there are, moved to argv[1] …, or -1
 * after a usage error; then the caller returns CTL_USAGE.
 */
int ctl_options(int argc, char **argv, const struct ctl_option *options, unsigned n);
/* Plain decimal digits up to 2^64 - 1. */
bool ctl_number(const char *text, uint64_t *value);
/* A finite decimal number ≥ 0. */
bool ctl_weight(const char *text, double *value);

#endif
