/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/common/ctl.h"
#include "client/ctl/offline/offline.h"
#include "client/ctl/online/talk.h"
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

static const struct ctl_command tokctl = {
	.name = "",
	.arguments = "COMMAND [ARGUMENT...] [OPTION...]",
	.help = "inspect and edit what tokend serves",
	.subcommands = commands,
};

/* `help COMMAND [SUBCOMMAND]` */
static int help(char **words)
{
	const struct ctl_command *c = &tokctl;

	for (; *words && c->subcommands; words++) {
		const struct ctl_command *sub = ctl_find(c->subcommands, *words);

		if (!sub)
			return ctl_unknown(c, *words);
		c = sub;
	}
	ctl_help(stdout, c);
	return CTL_OK;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		ctl_help(stderr, &tokctl);
		return CTL_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0)
		return puts("tokctl " TOKEND_VERSION) >= 0 ? CTL_OK : CTL_FAILED;
	if (strcmp(argv[1], "help") != 0)
		return ctl_run(&tokctl, argc, argv);
	return argc > 2 && strcmp(argv[2], "--keys") == 0 ? ctl_keys() : help(argv + 2);
}
