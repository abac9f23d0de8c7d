/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/online/talk.h"
#include "proto/version.h"

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

int main(int argc, char **argv)
{
	static char help[] = "--help";

	if (argc < 2) {
		ctl_help(stderr, &tokctl);
		return CTL_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0)
		return puts("tokctl " TOKEND_VERSION) >= 0 ? CTL_OK : CTL_FAILED;
	if (strcmp(argv[1], "help") == 0) { /* `help cursor mix` is `cursor mix --help` */
		if (argc > 2 && strcmp(argv[2], "--keys") == 0)
			return ctl_keys();
		memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof(*argv));
		argv[argc - 1] = help;
	}
	return ctl_run(&tokctl, argc, argv);
}
