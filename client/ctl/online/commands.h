/*
 * Subcommands that talk to a daemon. argv[0] is the subcommand's name; they return an exit status.
 */
#ifndef TOKEND_CTL_ONLINE_COMMANDS_H
#define TOKEND_CTL_ONLINE_COMMANDS_H

int ctl_cat(int argc, char **argv);
int ctl_status(int argc, char **argv);
int ctl_top(int argc, char **argv);
int ctl_request(int argc, char **argv); /* mix, skip, checkpoint, drain, rescale */

#endif
