/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/online/commands.h"
#include "proto/version.h"

#include <stdio.h>
#include <string.h>

/* In the order of ctl_synopses. */
static int (*const runs[CTL_COMMANDS])(int argc, char **argv) = {ctl_plan, ctl_when, ctl_inspect,
	ctl_pack, ctl_cat, ctl_cursor, ctl_verify, ctl_status, ctl_top, ctl_request, ctl_request,
	ctl_request, ctl_request, ctl_request};

static int find(const char *name)
{
	for (int i = 0; i < CTL_COMMANDS; i++)
		if (strcmp(ctl_synopses[i].name, name) == 0)
			return i;
	return -1;
}

static int help(FILE *to)
{
	fputs("tokctl COMMAND …: looks at and edits what tokend serves\n\n", to);
	for (int i = 0; i < CTL_COMMANDS; i++)
		fprintf(to, "  %-10s %s\n             tokctl %s %s\n", ctl_synopses[i].name,
			ctl_synopses[i].help, ctl_synopses[i].name, ctl_synopses[i].arguments);
	fputs("\nExit status: 0 success, 1 failure or a negative answer, 2 usage error. --json "
	      "prints one object a "
	      "line.\n",
		to);
	return to == stdout ? CTL_OK : CTL_USAGE;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return help(stderr);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0)
		return help(stdout);
	if (strcmp(argv[1], "--version") == 0) {
		puts("tokctl " TOKEND_VERSION);
		return CTL_OK;
	}
	int c = find(argv[1]);

	if (c < 0) {
		ctl_fail("'%s' is no command; `tokctl --help` lists them", argv[1]);
		return CTL_USAGE;
	}
	if (argc == 3 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
		printf("usage: tokctl %s %s\n%s\n", ctl_synopses[c].name, ctl_synopses[c].arguments,
			ctl_synopses[c].help);
		return CTL_OK;
	}
	return runs[c](argc - 1, argv + 1);
}
