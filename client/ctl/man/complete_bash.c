/*
 * A function with three tables: which words select a subcommand, which words each of them takes,
 * and which values each of its options.
 */
#include "client/ctl/man/complete.h"

#include <string.h>

/* After "tokctl help". */
#define HELP_WORDS "--man --completion"

static void put_paths(FILE *to, const struct ctl_command *command, const char *between)
{
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++) {
		fprintf(to, "%s\" %s\"", between, command->subcommands[i]->name);
		between = " | ";
		put_paths(to, command->subcommands[i], between);
	}
}

static void put_path(FILE *to, const struct ctl_command *command)
{
	fprintf(to, "%s%s", command->name[0] ? " " : "", command->name);
}

static void put_words(FILE *to, const struct ctl_command *command)
{
	fputs("\t\"", to);
	put_path(to, command);
	fputs("\") words=\"", to);
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		fprintf(to, "%s ", complete_word(command->subcommands[i]));
	for (unsigned i = 0; i < command->count; i++) {
		const struct ctl_option *o = &command->options[i];

		if (o->name && o->letter)
			fprintf(to, "-%c ", o->letter);
		if (o->name)
			fprintf(to, "--%s ", o->name);
	}
	fputs(command->name[0] || !command->subcommands ? "-h --help\" ;;\n"
							: "help -h --help --version\" ;;\n",
		to);
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		put_words(to, command->subcommands[i]);
}

static void put_value(FILE *to, const struct ctl_command *command, const struct ctl_option *o)
{
	fputs("\t\"", to);
	put_path(to, command);
	fprintf(to, " --%s\"", o->name);
	if (o->letter) {
		fputs(" | \"", to);
		put_path(to, command);
		fprintf(to, " -%c\"", o->letter);
	}
	if (complete_is_file(o)) {
		fputs(") return ;;\n", to);
		return;
	}
	fputs(") value=1 words=\"", to);
	for (const char *c = o->kind == CTL_CHOICE ? o->value : ""; *c; c++)
		fputc(*c == '|' ? ' ' : *c, to);
	fputs("\" ;;\n", to);
}

static void put_values(FILE *to, const struct ctl_command *command)
{
	for (unsigned i = 0; i < command->count; i++)
		if (command->options[i].name && command->options[i].kind != CTL_FLAG &&
			!command->options[i].optional)
			put_value(to, command, &command->options[i]);
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		put_values(to, command->subcommands[i]);
}

static void put_path_loop(FILE *to, const struct ctl_command *root)
{
	if (!root->subcommands)
		return;
	fputs("\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	      "\t\tcase \"$path ${COMP_WORDS[i]}\" in\n"
	      "\t\t\" help\"",
		to);
	put_paths(to, root, " | ");
	fputs(") path+=\" ${COMP_WORDS[i]}\" ;;\n"
	      "\t\t*) break ;;\n"
	      "\t\tesac\n"
	      "\tdone\n",
		to);
}

void complete_bash(FILE *to, const char *program, const struct ctl_command *root)
{
	fprintf(to,
		"# Completion of %s for bash, printed by `tokctl help --completion %s.bash`.\n"
		"_%s()\n{\n"
		"\tlocal current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
		"\tlocal path=\"\" words=\"\" value=\"\"%s\n\n"
		"\tCOMPREPLY=()\n",
		program, program, program, root->subcommands ? " i" : "");
	put_path_loop(to, root);
	/* bash splits --option=value at the sign. */
	fputs("\t[ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}\n"
	      "\t[ \"$current\" != = ] || current=\"\"\n"
	      "\tcase $path in\n",
		to);
	put_words(to, root);
	if (root->subcommands) {
		fputs("\t\" help\") words=\"" HELP_WORDS, to);
		for (unsigned i = 0; root->subcommands[i]; i++)
			fprintf(to, " %s", complete_word(root->subcommands[i]));
		fputs("\" ;;\n", to);
	}
	fputs("\tesac\n"
	      "\tcase \"$path $before\" in\n",
		to);
	put_values(to, root);
	fputs("\tesac\n"
	      "\t# No file names where a number or a name is expected.\n"
	      "\t[ -z \"$value\" ] || compopt +o default 2>/dev/null\n"
	      "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
	      "}\n",
		to);
	fprintf(to, "complete -o default -F _%s %s\n", program, program);
}
