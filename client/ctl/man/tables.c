#include "client/ctl/common/ctl.h"
#include "client/ctl/man/man.h"
#include "daemon/config/options.h"
#include "daemon/config/schema.h"
#include "proto/version.h"

#include <stdlib.h>

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
