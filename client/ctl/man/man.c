#include "client/ctl/man/man.h"

#include "client/ctl/common/error.h"
#include "client/ctl/man/complete.h"
#include "client/ctl/man/page.h"
#include "daemon/config/options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int ctl_man(const struct ctl_command *const *commands, const char *page)
{
	if (strcmp(page, "tokctl.1") == 0)
		page_tokctl(stdout, commands);
	else if (strcmp(page, "tokend.8") == 0)
		page_tokend(stdout);
	else if (strcmp(page, "tokend.yaml.5") == 0)
		page_config(stdout);
	else {
		ctl_fail("no man page '%s'; must be tokctl.1, tokend.8 or tokend.yaml.5", page);
		return CTL_USAGE;
	}
	return CTL_OK;
}

/* Writes tokend's table of options in the form of tokctl's to @options. As there, --help is none.
 */
static void convert(struct ctl_option *options)
{
	assert(option_rows <= CTL_OPTIONS);
	for (unsigned i = 0; i < option_rows; i++) {
		const struct option_row *o = &option_table[i];

		options[i] = (struct ctl_option){
			.name = strcmp(o->name, "help") ? o->name : NULL,
			.letter = o->letter,
			.kind = o->value ? CTL_TEXT : CTL_FLAG,
			.value = o->value,
			.help = o->help,
		};
	}
}

int ctl_complete(const struct ctl_command *const *commands, const char *file)
{
	struct ctl_option options[CTL_OPTIONS] = {0};
	const struct ctl_command tokctl = {.name = "", .subcommands = commands},
				 tokend = {.name = "", .options = options, .count = option_rows};

	convert(options);
	if (strcmp(file, "tokctl.bash") == 0)
		complete_bash(stdout, "tokctl", &tokctl);
	else if (strcmp(file, "tokend.bash") == 0)
		complete_bash(stdout, "tokend", &tokend);
	else if (strcmp(file, "_tokctl") == 0)
		complete_zsh(stdout, "tokctl", &tokctl);
	else if (strcmp(file, "_tokend") == 0)
		complete_zsh(stdout, "tokend", &tokend);
	else {
		ctl_fail("no completion '%s'; must be tokctl.bash, tokend.bash, _tokctl or _tokend",
			file);
		return CTL_USAGE;
	}
	return CTL_OK;
}
