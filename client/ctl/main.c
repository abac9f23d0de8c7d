/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/common/ctl.h"
#include "client/ctl/offline/offline.h"
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"
#include "proto/version.h"

#include <stdio.h>
#include <string.h>

static const struct ctl_command *const commands[] = {
	&ctl_status,
	&ctl_doctor,
	&ctl_start,
	&ctl_stop,
	&ctl_cache,
	&ctl_metrics,
	&ctl_serve,
	&ctl_mix,
	&ctl_skip,
	&ctl_checkpoint,
	&ctl_drain,
	&ctl_rescale,
	&ctl_plan,
	&ctl_when,
	&ctl_cost,
	&ctl_cat,
	&ctl_inspect,
	&ctl_manifest,
	&ctl_pack,
	&ctl_verify,
	&ctl_cursor,
	&ctl_completion,
	NULL,
};

/* The heads that help prints above these commands. */
static const struct {
	const struct ctl_command *above;
	const char *text;
} heads[] = {
	{&ctl_status, "On a node:"},
	{&ctl_mix, "A running job:"},
	{&ctl_plan, "The order of a stream:"},
	{&ctl_inspect, "Shards:"},
	{&ctl_verify, "After a run:"},
	{&ctl_completion, "Of tokctl:"},
};

static int help(FILE *to)
{
	fputs("usage: tokctl COMMAND [ARGUMENT...] [OPTION...]\nInspects and edits what tokend "
	      "serves.\n\n",
		to);
	for (unsigned i = 0, head = 0; commands[i]; i++) {
		if (head < sizeof(heads) / sizeof(heads[0]) && commands[i] == heads[head].above)
			fprintf(to, "%s%s\n", i > 0 ? "\n" : "", heads[head++].text);
		ctl_help_line(to, commands[i]);
	}
	fputs("\n`tokctl help COMMAND` lists its options; tokctl(1) explains what it prints.\n"
	      "Exit status: 0 success, 1 failure or a negative answer, 2 usage error.\n",
		to);
	return to == stdout ? CTL_OK : CTL_USAGE;
}

static int unknown(const char *name)
{
	const char *near = ctl_nearest(commands, name);

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

int main(int argc, char **argv)
{
	static char option[] = "--help";
	char *name = argc > 1 ? argv[1] : option;
	bool on = strcmp(name, "help") == 0 && argc > 2; /* help COMMAND [SUBCOMMAND] */

	if (argc < 2)
		return help(stderr);
	if (on && strcmp(argv[2], "--tables") == 0)
		return ctl_tables(commands);
	if (strcmp(name, "complete") == 0)
		return ctl_complete(commands);
	if (strcmp(name, "--version") == 0)
		return puts("tokctl " TOKEND_VERSION) >= 0 ? CTL_OK : CTL_FAILED;
	if (!on &&
		(strcmp(name, option) == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0))
		return help(stdout);
	const struct ctl_command *command = ctl_find(commands, argv[1 + on]);

	if (!command)
		return unknown(argv[1 + on]);
	if (on)
		return ctl_run(
			command, 3, (char *[]){argv[2], argc > 3 ? argv[3] : option, option, NULL});
	return ctl_run(command, argc - 1, argv + 1);
}
