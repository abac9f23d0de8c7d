/* A function for the program, and one for each command that has subcommands. */
#include "client/ctl/man/complete.h"

#include <string.h>

/* A text inside '…'. Characters of @special get a backslash. */
static void put_quoted(FILE *to, const char *text, const char *special)
{
	for (; *text; text++) {
		if (strchr(special, *text))
			fputc('\\', to);
		if (*text == '\'')
			fputs("'\\''", to);
		else
			fputc(*text, to);
	}
}

static void put_option(FILE *to, const struct ctl_option *o)
{
	fputs(" \\\n\t\t", to);
	if (o->kind == CTL_LIST)
		fputs("'*'", to);
	else if (o->letter)
		fprintf(to, "'(-%c --%s)'", o->letter, o->name);
	if (o->letter && o->kind != CTL_FLAG)
		fprintf(to, "{-%c+,--%s=}", o->letter, o->name);
	else if (o->letter)
		fprintf(to, "{-%c,--%s}", o->letter, o->name);
	else
		fprintf(to, "--%s%s", o->name, o->kind == CTL_FLAG || o->optional ? "" : "=");
	fputs("'[", to);
	put_quoted(to, o->help, "[]\\");
	fputs("]", to);
	if (o->kind != CTL_FLAG && !o->optional) {
		fputs(":", to);
		put_quoted(to, o->value, ":\\");
		fputs(":", to);
	}
	if (o->kind == CTL_CHOICE) {
		fputs("(", to);
		for (const char *c = o->value; *c; c++)
			fputc(*c == '|' ? ' ' : *c, to);
		fputs(")", to);
	} else if (o->kind != CTL_FLAG && complete_is_file(o)) {
		fputs("_files", to);
	}
	fputs("'", to);
}

static void put_arguments(FILE *to, const struct ctl_command *command)
{
	fputs("\t_arguments -s -S", to);
	for (unsigned i = 0; i < command->count; i++)
		if (command->options[i].name)
			put_option(to, &command->options[i]);
	fputs(" \\\n\t\t'(- *)'{-h,--help}'[print this text]'", to);
	if (command->arguments) {
		fputs(" \\\n\t\t'*:", to);
		put_quoted(to, command->arguments, ":\\");
		fputs(":_files'", to);
	}
	fputs("\n", to);
}

static void put_function_name(FILE *to, const char *program, const struct ctl_command *command)
{
	fprintf(to, "_%s%s%s", program, command->name[0] ? "_" : "", command->name);
}

static void put_group(FILE *to, const char *program, const struct ctl_command *group);

static void put_function(FILE *to, const char *program, const struct ctl_command *command)
{
	if (command->subcommands) {
		put_group(to, program, command);
		return;
	}
	put_function_name(to, program, command);
	fputs("() {\n", to);
	put_arguments(to, command);
	fputs("}\n\n", to);
}

/* A word of the command line that selects a subcommand, and what follows it. */
static void put_group(FILE *to, const char *program, const struct ctl_command *group)
{
	put_function_name(to, program, group);
	fputs("() {\n"
	      "\tlocal curcontext=$curcontext state line\n"
	      "\tlocal -a commands\n\n"
	      "\tcommands=(\n",
		to);
	for (unsigned i = 0; group->subcommands[i]; i++) {
		fprintf(to, "\t\t'%s:", complete_word(group->subcommands[i]));
		put_quoted(to, group->subcommands[i]->help, "\\");
		fputs("'\n", to);
	}
	if (!group->name[0])
		fputs("\t\t'help:print the options of a command'\n", to);
	fputs("\t)\n"
	      "\t_arguments -C '(- *)'{-h,--help}'[print a list of commands]' ",
		to);
	fputs(group->name[0] ? "" : "'(- *)--version[print the version]' ", to);
	fputs("'1: :->command' '*:: :->rest'\n"
	      "\tcase $state in\n"
	      "\tcommand) _describe command commands ;;\n"
	      "\trest)\n"
	      "\t\tcase $line[1] in\n",
		to);
	for (unsigned i = 0; group->subcommands[i]; i++) {
		fprintf(to, "\t\t%s) ", complete_word(group->subcommands[i]));
		put_function_name(to, program, group);
		fprintf(to, "_%s ;;\n", complete_word(group->subcommands[i]));
	}
	if (!group->name[0])
		fputs("\t\thelp) _describe command commands ;;\n", to);
	fputs("\t\tesac ;;\n"
	      "\tesac\n"
	      "}\n\n",
		to);
	for (unsigned i = 0; group->subcommands[i]; i++) {
		struct ctl_command named = *group->subcommands[i];
		char name[64];

		snprintf(name, sizeof(name), "%s", named.name);
		for (char *c = name; *c; c++)
			*c = *c == ' ' ? '_' : *c;
		named.name = name;
		put_function(to, program, &named);
	}
}

void complete_zsh(FILE *to, const char *program, const struct ctl_command *root)
{
	fprintf(to,
		"#compdef %s\n"
		"# Completion of %s for zsh, printed by `tokctl help --completion _%s`.\n\n",
		program, program, program);
	put_function(to, program, root);
	fprintf(to, "_%s \"$@\"\n", program);
}
