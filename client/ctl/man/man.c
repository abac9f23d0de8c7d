/*
 * For man pages and shells: what the tables of options, commands and config keys say. pages.py
 * makes the man pages from `tokctl help --tables`. bash runs `tokctl complete` at each TAB, with
 * the line in $COMP_LINE; zsh does so by its bashcompinit. If no word is printed, the shell offers
 * names of files.
 */
#include "client/ctl/common/ctl.h"
#include "daemon/config/options.h"
#include "daemon/config/schema.h"
#include "proto/version.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes tokend's table of options in the form of tokctl's. Returns their number. */
static unsigned tokend_options(struct ctl_option options[CTL_OPTIONS])
{
	assert(option_rows <= CTL_OPTIONS);
	for (unsigned i = 0; i < option_rows; i++) {
		const struct option_row *o = &option_table[i];

		options[i] = (struct ctl_option){.name = o->name,
			.letter = o->letter,
			.kind = !o->value  ? CTL_FLAG
				: o->least ? CTL_NUMBER
					   : CTL_TEXT,
			.required = o->required,
			.value = o->value,
			.least = o->least,
			.most = o->most,
			.help = o->help};
	}
	return option_rows;
}

/* ---- for pages.py ---- */

static void put_options(struct emit *e, const struct ctl_option *options, unsigned n)
{
	char range[128], name[64];

	emit_open(e, "options", '[');
	for (unsigned i = 0; i < n; i++) {
		const struct ctl_option *o = &options[i];

		if (!o->name)
			continue;
		ctl_range(o, range, sizeof(range));
		snprintf(name, sizeof(name), o->optional ? "%s[=%s]" : "%s", o->name, o->value);
		emit_open(e, "", '{');
		emit_text(e, "name", NULL, name);
		emit_text(e, "letter", NULL, (const char[]){o->letter, 0});
		emit_text(e, "value", NULL, o->kind == CTL_FLAG || o->optional ? "" : o->value);
		emit_text(e, "help", NULL, o->help);
		emit_text(e, "range", NULL, range);
		emit_bool(e, "required", NULL, o->required);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

static void put_command(struct emit *e, const struct ctl_command *c)
{
	char *synopsis = ctl_synopsis(c);

	emit_text(e, "command", NULL, c->name);
	emit_text(e, "synopsis", NULL, synopsis);
	emit_text(e, "help", NULL, c->help);
	put_options(e, c->options, c->count);
	emit_row(e);
	free(synopsis);
	for (unsigned i = 0; c->subcommands && c->subcommands[i]; i++)
		put_command(e, c->subcommands[i]);
}

static void put_keys(struct emit *e, const char *name, const struct schema_table *table)
{
	char right[SCHEMA_RIGHT_BYTES];

	emit_text(e, "keys_of", NULL, name);
	emit_open(e, "keys", '[');
	for (size_t i = 0; i < table->n; i++) {
		const struct schema_key *key = &table->keys[i];

		emit_open(e, "", '{');
		emit_text(e, "name", NULL, key->name);
		emit_text(e, "help", NULL, key->help);
		emit_text(e, "value", NULL, schema_right(key, right));
		emit_bool(e, "required", NULL, key->required);
		emit_text(e, "default", NULL, key->preset ? key->preset : key->otherwise);
		emit_close(e, '}');
	}
	emit_close(e, ']');
	emit_row(e);
}

int ctl_tables(const struct ctl_command *const *commands)
{
	struct emit e = {.json = true};
	struct ctl_option options[CTL_OPTIONS];
	unsigned n = tokend_options(options);

	emit_text(&e, "version", NULL, TOKEND_VERSION);
	put_options(&e, options, n);
	emit_row(&e);
	for (unsigned i = 0; commands[i]; i++)
		put_command(&e, commands[i]);
	put_keys(&e, "config", &config_table);
	put_keys(&e, "stream", &stream_table);
	put_keys(&e, "dataset", &dataset_table);
	put_keys(&e, "step", &step_table);
	put_keys(&e, "store", &store_table);
	put_keys(&e, "cache", &cache_table);
	return emit_end(&e, CTL_OK);
}

/* ---- words for a shell ---- */

/* Prints each of @words, which are separated by one of " |", that begins with @typed. */
static void offer(const char *typed, const char *words)
{
	for (size_t n; *words; words += n, words += *words != 0) {
		n = strcspn(words, " |");
		if (strncmp(words, typed, strlen(typed)) == 0)
			printf("%.*s\n", (int)n, words);
	}
}

/* @before: the word before the typed one, or "". */
static void complete(const struct ctl_command *c, char *before, const char *typed)
{
	unsigned o = before[0] == '-' ? ctl_option(c, before, &(char *){NULL}) : c->count;
	char name[64];

	if (o < c->count && c->options[o].kind != CTL_FLAG && !c->options[o].optional) {
		offer(typed, c->options[o].kind == CTL_CHOICE ? c->options[o].value : "");
		return;
	}
	for (unsigned i = 0; typed[0] == '-' && i < c->count; i++) {
		snprintf(name, sizeof(name), "--%s", c->options[i].name ? c->options[i].name : "");
		offer(typed, c->options[i].name ? name : "");
	}
	offer(typed, typed[0] == '-' ? "--help" : "");
	for (unsigned i = 0; c->subcommands && c->subcommands[i]; i++)
		offer(typed, ctl_last_word(c->subcommands[i]));
}

int ctl_complete(const struct ctl_command *const *commands)
{
	const char *line = getenv("COMP_LINE"), *point = getenv("COMP_POINT");
	struct ctl_option options[CTL_OPTIONS];
	const struct ctl_command tokctl = {.subcommands = commands},
				 tokend = {.options = options, .count = tokend_options(options)};
	const struct ctl_command *c = NULL;
	char text[4096], none[] = "", *rest = text, *before = none, *word = none;

	snprintf(text, sizeof(text), "%.*s", point ? atoi(point) : -1, line ? line : "");
	/* "--format=z" is two words, as "--format z" is. */
	for (char *next; (next = strsep(&rest, " ="));) {
		const struct ctl_command *const *among = c ? c->subcommands : NULL;

		if (!rest || *next) {
			before = word;
			word = next;
		}
		if (!c) /* may be a path, like tokend/bin/tokctl */
			c = strcmp(basename(next), "tokend") == 0 ? &tokend : &tokctl;
		else if (rest && c == &tokctl && strcmp(next, "help") == 0)
			continue;
		else if (rest && among && ctl_find(among, next))
			c = ctl_find(among, next);
	}
	complete(c, before, word);
	return CTL_OK;
}

/* ---- installing it ---- */

static int completion(const struct ctl_arguments *a)
{
	const char *shell = a->argument[0];

	if (strcmp(shell, "bash") == 0)
		puts("complete -o default -C 'tokctl complete' tokctl tokend");
	else if (strcmp(shell, "zsh") == 0)
		puts("#compdef tokctl tokend\n"
		     "autoload -Uz bashcompinit && bashcompinit\n"
		     "if [ \"$funcstack[1]\" = _tokctl ]; then\n"
		     "\t_bash_complete -o default -C 'tokctl complete'\n"
		     "else\n"
		     "\tcomplete -o default -C 'tokctl complete' tokctl tokend\n"
		     "fi");
	else
		return ctl_usage(a->command, "'%s': must be bash or zsh", shell);
	return CTL_OK;
}

const struct ctl_command ctl_completion = {
	.name = "completion",
	.arguments = "bash|zsh",
	.help = "print a completion of tokctl and tokend for a shell",
	.run = completion,
};
