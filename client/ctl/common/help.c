/* Synopses and help, made from the tables of options. */
#include "client/ctl/common/ctl.h"
#include "proto/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* " FILE", "[=SECONDS]" or "". */
static const char *value_of(const struct ctl_option *o, char text[64])
{
	text[0] = 0;
	if (o->kind != CTL_FLAG)
		snprintf(text, 64, o->optional ? "[=%s]" : " %s", o->value);
	return text;
}

char *ctl_synopsis(const struct ctl_command *command)
{
	char *synopsis = NULL;
	size_t bytes;
	FILE *to = open_memstream(&synopsis, &bytes);

	if (!to)
		return NULL;
	fprintf(to, "tokctl %s", command->name);
	if (command->arguments)
		fprintf(to, " %s", command->arguments);
	for (int required = 1; required >= 0; required--)
		for (unsigned i = 0; i < command->count; i++) {
			const struct ctl_option *o = &command->options[i];
			char value[64];

			if (!o->name || o->required != required)
				continue;
			fprintf(to, required ? " -" : " [-");
			o->letter ? fprintf(to, "%c", o->letter) : fprintf(to, "-%s", o->name);
			fprintf(to, "%s%s%s", value_of(o, value), o->kind == CTL_LIST ? "..." : "",
				required ? "" : "]");
		}
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		fprintf(to, "%s%s", i ? "|" : " ", ctl_last_word(command->subcommands[i]));
	fclose(to);
	return synopsis;
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

/* "  -c, --config FILE" */
static int write_left(char *left, size_t bytes, const struct ctl_option *o)
{
	char letter[8] = "    ", value[64];

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	return snprintf(left, bytes, "  %s--%s%s", letter, o->name, value_of(o, value));
}

void ctl_help(FILE *to, const struct ctl_command *command)
{
	char left[80], range[128], text[512], *synopsis = ctl_synopsis(command);
	int column = (int)strlen("  -h, --help");

	fputs("usage: ", to);
	put_wrapped(to, synopsis ? synopsis : "", (int)strlen("usage: "));
	free(synopsis);
	fprintf(to, "%s\n\n", command->help);
	if (command->subcommands) {
		for (unsigned i = 0; command->subcommands[i]; i++)
			ctl_help_line(to, command->subcommands[i]);
		return;
	}
	for (unsigned i = 0; i < command->count; i++) {
		const struct ctl_option *o = &command->options[i];
		int n = o->name ? write_left(left, sizeof(left), o) : 0;

		column = n > column ? n : column;
	}
	column += 2;
	for (unsigned i = 0; i < command->count; i++) {
		const struct ctl_option *o = &command->options[i];

		if (!o->name)
			continue;
		write_left(left, sizeof(left), o);
		ctl_range(o, range, sizeof(range));
		snprintf(text, sizeof(text), range[0] ? "%s (%s)" : "%s", o->help, range);
		fprintf(to, "%-*s", column, left);
		put_wrapped(to, text, column);
	}
	fprintf(to, "%-*sprint this text\n", column, "  -h, --help");
}

void ctl_help_line(FILE *to, const struct ctl_command *command)
{
	fprintf(to, "  %-10s  %s\n", ctl_last_word(command), command->help);
}
