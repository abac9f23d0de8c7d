/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/doctor/doctor.h"
#include "client/ctl/man/man.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/online/commands.h"
#include "proto/phrases.h"
#include "proto/version.h"

#include <stdio.h>
#include <string.h>

static const struct ctl_command *const commands[] = {
	&ctl_plan,
	&ctl_when,
	&ctl_inspect,
	&ctl_pack,
	&ctl_cat,
	&ctl_cursor,
	&ctl_verify,
	&ctl_start,
	&ctl_stop,
	&ctl_status,
	&ctl_metrics,
	&ctl_serve,
	&ctl_cache,
	&ctl_doctor,
	&ctl_mix,
	&ctl_skip,
	&ctl_checkpoint,
	&ctl_drain,
	&ctl_rescale,
	&ctl_completion,
	NULL,
};

static int help(FILE *to)
{
	fputs("usage: tokctl COMMAND [ARGUMENT...] [OPTION...]\nInspects and edits what tokend "
	      "serves.\n\n",
		to);
	ctl_help_all(to, commands);
	fputs("\n`tokctl help COMMAND` lists its options.\n"
	      "Exit status: 0 success, 1 failure or a negative answer, 2 usage error.\n",
		to);
	return to == stdout ? CTL_OK : CTL_USAGE;
}

static int unknown(const struct ctl_command *const *among, const char *name)
{
	const char *near = ctl_nearest(among, name);

	if (name[0] == '-')
		ctl_fail("unknown option %s before the command; put the command first: tokctl "
			 "COMMAND [OPTION...]",
			name);
	else if (strcmp(name, "init") == 0)
		ctl_fail(PHRASE_INIT);
	else if (near)
		ctl_fail("unknown command '%s' (did you mean %s?); `tokctl help` lists all", name,
			near);
	else
		ctl_fail("unknown command '%s'; `tokctl help` lists all", name);
	return CTL_USAGE;
}

/* `tokctl help COMMAND [SUBCOMMAND]` */
static int help_on(int names, char **name)
{
	static const struct ctl_command *const none[] = {NULL};
	const struct ctl_command *const *among = commands, *command = NULL;

	for (int i = 0; i < names; i++) {
		command = ctl_find(among, name[i]);
		if (!command)
			return unknown(among, name[i]);
		among = command->subcommands ? command->subcommands : none;
	}
	ctl_help(stdout, command);
	return CTL_OK;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return help(stderr);
	if (strcmp(argv[1], "help") == 0 && argc == 3 && strcmp(argv[2], "--tables") == 0)
		return ctl_tables(commands);
	if (strcmp(argv[1], "complete") == 0)
		return ctl_complete(commands);
	if (strcmp(argv[1], "help") == 0 && argc > 2)
		return help_on(argc - 2, argv + 2);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0)
		return help(stdout);
	if (strcmp(argv[1], "--version") == 0) {
		puts("tokctl " TOKEND_VERSION);
		return CTL_OK;
	}
	const struct ctl_command *command = ctl_find(commands, argv[1]);

	return command ? ctl_run(command, argc - 1, argv + 1) : unknown(commands, argv[1]);
}
