/*
 * Subcommands that need no daemon. argv[0] is the subcommand's name; they return an exit status.
 */
#ifndef TOKEND_CTL_OFFLINE_COMMANDS_H
#define TOKEND_CTL_OFFLINE_COMMANDS_H

int ctl_plan(int argc, char **argv);
int ctl_when(int argc, char **argv);
int ctl_inspect(int argc, char **argv);
int ctl_pack(int argc, char **argv);
int ctl_cursor(int argc, char **argv);
int ctl_verify(int argc, char **argv);

#endif
