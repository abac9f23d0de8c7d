/* Completions for shells, made from the tables that parse the command lines. */
#ifndef TOKEND_CTL_COMPLETE_H
#define TOKEND_CTL_COMPLETE_H

#include "client/ctl/common/arguments.h"

#include <stdio.h>

/* The completion of @program for a shell. @root has its subcommands, or its options. */
void complete_bash(FILE *to, const char *program, const struct ctl_command *root);
void complete_zsh(FILE *to, const char *program, const struct ctl_command *root);

/* The last word of a command's name: "mix" of "cursor mix". */
const char *complete_word(const struct ctl_command *command);
/* True if the option's value is the name of a file. */
bool complete_is_file(const struct ctl_option *o);

#endif
