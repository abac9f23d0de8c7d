/* tokctl(1). */
#include "client/ctl/common/help.h"
#include "client/ctl/man/page.h"
#include "client/ctl/man/roff.h"

#include <stdlib.h>

static const char ABOUT[] =
	"Commands that take `--socket` connect to a running daemon; `start` starts one. The "
	"others read the config, shards, cursors and records, and need no daemon.\n\n"
	"Options may come anywhere after the command. Numbers are decimal digits. Results go to "
	"stdout, messages to stderr. `tokctl help` lists the commands. `tokctl help COMMAND` and "
	"`tokctl COMMAND --help` print the options of one. `tokctl help --man PAGE` prints the "
	"source of a man page: `tokctl.1`, `tokend.8` or `tokend.yaml.5`. "
	"`tokctl help --completion FILE` prints a completion for bash (`tokctl.bash`, "
	"`tokend.bash`) or zsh (`_tokctl`, `_tokend`).";

static const char PLACES_TEXT[] =
	"tokend, trainers and tokctl look for the socket at the same places, in this order: "
	"`--socket` (in Python `socket=`), `$TOKEND_SOCKET`, `socket:` of the config, "
	"`$XDG_RUNTIME_DIR/tokend/tokend.sock`, `/tmp/tokend-UID/tokend.sock`, "
	"`/run/tokend/tokend.sock`. One of the first three is the only place if it is given. "
	"Otherwise a daemon listens at the last one, or, if its user may not, at the first other "
	"one that it can create; clients take the first at which a daemon listens. Private "
	"daemons (`Loader(config=)`, `tokctl start`) listen next to the user's sockets.\n\n"
	"With `-c FILE`, tokctl takes the first daemon there that serves FILE, also a private one. "
	"Without a name, `status` prints all daemons that it finds; a request goes to the only "
	"one with sessions of its stream and run; other commands use the only daemon, or the one "
	"that trainers find. If none answers, the message names each place and why.\n\n"
	"State is in `state_dir:` of the config, otherwise in `$STATE_DIRECTORY`, otherwise in "
	"`/var/lib/tokend`. A daemon that may not write there, unless the config names it, and a "
	"private one use `$XDG_STATE_HOME/tokend/HASH`, otherwise `~/.local/state/tokend/HASH`, "
	"with a hash of the config's path. `--run` looks in both.";

static const struct page_item statuses[] = {
	{"0", "Success."},
	{"1", "Failure, or a negative answer: cursors differ, shards are faulty, a proof failed."},
	{"2", "Usage error."},
	{NULL, NULL},
};

static const struct page_item variables[] = {
	{"TOKEND_BIN, PATH",
		"`tokctl start` and trainers look for the programs in `$TOKEND_BIN`, then near "
		"their own file, then in `$PATH`."},
	{"TOKEND_SOCKET", "The daemon's socket, unless `--socket` is given. See PLACES."},
	{"TOKEND_TRUST_UID", "User numbers, separated by commas. tokctl and trainers connect only "
			     "to a daemon of root, of their own user, or of a user listed here."},
	{"XDG_RUNTIME_DIR", "Directory of the user's sockets. See PLACES."},
	{NULL, NULL},
};

static const struct page_item files[] = {
	{"/run/tokend/tokend.sock", "The default socket."},
	{"/var/lib/tokend/STREAM/RUN/", "The snapshots of a run, TAG.cursor, and its last cursor. "
					"The directory is state_dir of the config."},
	{NULL, NULL},
};

static void put_options(FILE *to, const struct ctl_command *command)
{
	char range[128], name[64];

	for (unsigned i = 0; i < command->count; i++) {
		const struct ctl_option *o = &command->options[i];

		if (!o->name)
			continue;
		ctl_range(o, range, sizeof(range));
		snprintf(name, sizeof(name), o->optional ? "%s[=%s]" : "%s", o->name, o->value);
		page_option(to, &(struct page_option){o->letter, o->required, name,
					o->kind == CTL_FLAG || o->optional ? NULL : o->value,
					o->help, range});
	}
}

static void put_command(FILE *to, const struct ctl_command *command)
{
	char title[64], *synopsis = NULL;
	size_t bytes;
	FILE *text;

	snprintf(title, sizeof(title), "tokctl %s", command->name);
	roff_subsection(to, title);
	roff_phrase(to, command->help, "", ".");
	text = open_memstream(&synopsis, &bytes);
	if (text) {
		ctl_synopsis(text, command);
		fclose(text);
		roff_synopsis(to, synopsis);
		free(synopsis);
	}
	if (command->about)
		roff_text(to, command->about);
	put_options(to, command);
	if (command->examples)
		page_examples(to, command->examples);
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++)
		put_command(to, command->subcommands[i]);
}

void page_tokctl(FILE *to, const struct ctl_command *const *commands)
{
	roff_begin(to, "tokctl", 1, "inspect and edit what tokend serves");
	roff_section(to, "SYNOPSIS");
	fputs(".B tokctl\n.I COMMAND\n[\\fIARGUMENT\\fR...] [\\fIOPTION\\fR...]\n.br\n"
	      ".B tokctl help\n[\\fICOMMAND\\fR | \\fB\\-\\-man\\fR \\fIPAGE\\fR | "
	      "\\fB\\-\\-completion\\fR \\fIFILE\\fR]\n.br\n"
	      ".B tokctl \\-\\-version\n",
		to);
	roff_section(to, "DESCRIPTION");
	roff_text(to, ABOUT);
	roff_section(to, "COMMANDS");
	for (unsigned i = 0; commands[i]; i++)
		put_command(to, commands[i]);
	roff_section(to, "PLACES");
	roff_text(to, PLACES_TEXT);
	page_items(to, "EXIT STATUS", statuses);
	page_items(to, "ENVIRONMENT", variables);
	page_items(to, "FILES", files);
	roff_section(to, "SEE ALSO");
	fputs(".BR tokend (8),\n.BR tokend.yaml (5)\n", to);
}
