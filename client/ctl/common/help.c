#include "client/ctl/common/help.h"

#include "proto/wrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How an option is written: "-c FILE", "--json". */
static void put_option(FILE *to, const struct ctl_option *o)
{
	if (o->letter)
		fprintf(to, "-%c", o->letter);
	else
		fprintf(to, "--%s", o->name);
	if (o->kind != CTL_FLAG)
		fprintf(to, o->optional ? "[=%s]" : " %s", o->value);
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

/* Puts @text from column @indent on, with all its lines there. */
static void put_wrapped(FILE *to, const char *text, int indent)
{
	for (;;) {
		size_t n = wrap_line(text, (size_t)(WRAP_COLUMNS - indent));

		fprintf(to, "%.*s\n", (int)n, text);
		text += n + strspn(text + n, " ");
		if (!*text)
			break;
		fprintf(to, "%*s", indent, "");
	}
}

static void put_usage(FILE *to, const struct ctl_command *command)
{
	static const char head[] = "usage: ";
	char *synopsis = NULL;
	size_t bytes;
	FILE *text = open_memstream(&synopsis, &bytes);

	fputs(head, to);
	if (text) {
		ctl_synopsis(text, command);
		fclose(text);
		put_wrapped(to, synopsis, (int)strlen(head));
		free(synopsis);
	}
}

/* "  -c, --config FILE" */
static int write_left(char *left, size_t bytes, const struct ctl_option *o)
{
	char letter[8] = "    ";

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	return snprintf(left, bytes, "  %s--%s%s%s%s", letter, o->name,
		o->kind == CTL_FLAG ? ""
		: o->optional	    ? "[="
				    : " ",
		o->kind == CTL_FLAG ? "" : o->value, o->optional ? "]" : "");
}

static void put_option_help(FILE *to, const struct ctl_option *o, int column)
{
	char left[80], range[128], text[512];

	write_left(left, sizeof(left), o);
	ctl_range(o, range, sizeof(range));
	snprintf(text, sizeof(text), "%s%s%s%s", o->help, range[0] ? " (" : "", range,
		range[0] ? ")" : "");
	fprintf(to, "%-*s", column, left);
	put_wrapped(to, text, column);
}

void ctl_help(FILE *to, const struct ctl_command *command)
{
	char left[80];

	put_usage(to, command);
	fprintf(to, "%s\n", command->help);
	if (command->subcommands) {
		fputs("\n", to);
		ctl_help_all(to, command->subcommands);
		return;
	}
	fputs("\n", to);
	int column = 0;

	for (unsigned i = 0; i < command->count; i++) {
		int n = command->options[i].name
				? write_left(left, sizeof(left), &command->options[i])
				: 0;

		column = n > column ? n : column;
	}
	column += 2;
	for (unsigned i = 0; i < command->count; i++)
		if (command->options[i].name)
			put_option_help(to, &command->options[i], column);
	fprintf(to, "%-*sprint this text\n", column, "  -h, --help");
}

void ctl_help_all(FILE *to, const struct ctl_command *const *commands)
{
	for (unsigned i = 0; commands[i]; i++) {
		const char *last = strrchr(commands[i]->name, ' ');

		fprintf(to, "  %-10s  %s\n", last ? last + 1 : commands[i]->name,
			commands[i]->help);
	}
}
