#include "client/ctl/common/help.h"

#include <inttypes.h>
#include <string.h>

enum { HELP_COLUMN = 30 };

/* How an option is written: "-c FILE", "--json". */
static void put_option(FILE *to, const struct ctl_option *o)
{
	if (o->letter)
		fprintf(to, "-%c", o->letter);
	else
		fprintf(to, "--%s", o->name);
	if (o->kind != CTL_FLAG)
		fprintf(to, " %s", o->value);
}

void ctl_synopsis(FILE *to, const struct ctl_command *command)
{
	fprintf(to, "tokctl %s", command->name);
	if (command->arguments)
		fprintf(to, " %s", command->arguments);
	for (int required = 1; required >= 0; required--)
		for (unsigned i = 0; i < command->count; i++) {
			const struct ctl_option *o = &command->options[i];

			if (!o->name || o->required != required)
				continue;
			fputs(required ? " " : " [", to);
			put_option(to, o);
			fputs(o->kind == CTL_LIST ? "..." : "", to);
			fputs(required ? "" : "]", to);
		}
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		fprintf(to, "%s%s", i ? "|" : " ", strchr(command->subcommands[i]->name, ' ') + 1);
}

void ctl_range(const struct ctl_option *o, char *text, size_t bytes)
{
	int n = 0;

	text[0] = 0;
	if (o->kind == CTL_NUMBER && o->most < UINT64_MAX - 1)
		n = snprintf(text, bytes, "%" PRIu64 " to %" PRIu64, o->least, o->most);
	else if (o->kind == CTL_NUMBER && o->least > 0)
		n = snprintf(text, bytes, "%" PRIu64 " or more", o->least);
	else if (o->kind == CTL_DECIMAL)
		n = snprintf(text, bytes, "%g to %g", o->low, o->high);
	else if (o->kind == CTL_LIST)
		n = snprintf(text, bytes, "may be repeated");
	if (o->preset)
		snprintf(text + n, bytes - (size_t)n, "%sdefault: %s", n ? "; " : "", o->preset);
}

static void put_option_help(FILE *to, const struct ctl_option *o)
{
	char left[80], letter[8] = "    ", range[128];

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	snprintf(left, sizeof(left), "  %s--%s%s%s", letter, o->name,
		o->kind == CTL_FLAG ? "" : " ", o->kind == CTL_FLAG ? "" : o->value);
	ctl_range(o, range, sizeof(range));
	fprintf(to, "%-*s  %s%s%s%s\n", HELP_COLUMN, left, o->help, range[0] ? " (" : "", range,
		range[0] ? ")" : "");
}

void ctl_help(FILE *to, const struct ctl_command *command)
{
	fputs("usage: ", to);
	ctl_synopsis(to, command);
	fprintf(to, "\n%s\n", command->help);
	if (command->subcommands) {
		fputs("\n", to);
		ctl_help_all(to, command->subcommands);
		return;
	}
	fputs("\n", to);
	for (unsigned i = 0; i < command->count; i++)
		if (command->options[i].name)
			put_option_help(to, &command->options[i]);
	fprintf(to, "%-*s  print this text\n", HELP_COLUMN, "  -h, --help");
}

void ctl_help_all(FILE *to, const struct ctl_command *const *commands)
{
	for (unsigned i = 0; commands[i]; i++) {
		const char *last = strrchr(commands[i]->name, ' ');

		fprintf(to, "  %-10s  %s\n", last ? last + 1 : commands[i]->name,
			commands[i]->help);
	}
}
