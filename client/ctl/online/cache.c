/* tokctl cache: what a daemon's cache holds, and removing a dataset from it. */
#include "client/ctl/common/columns.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/cache_ask.h"
#include "client/ctl/online/commands.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SOCKET, CONFIG, JSON, OPTIONS };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[JSON] = CTL_JSON_OPTION,
};

static uint64_t number(const json_t *row, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(row, name));
}

static const char *text(const json_t *row, const char *name)
{
	const char *value = json_string_value(json_object_get(row, name));

	return value ? value : "";
}

static const struct ctl_column columns[] = {
	{"DATASET", false}, {"OBJECTS", true}, {"PIECES", true}, {"GB", true}, {"URL", false}};

struct list {
	struct ctl_out out;
	struct ctl_columns table;
	bool json;
};

static void put_row(struct list *l, const json_t *row)
{
	bool named = text(row, "dataset")[0];

	if (!l->json) {
		ctl_columns_add(&l->table, "%s", named ? text(row, "dataset") : "(others)");
		ctl_columns_add(&l->table, "%" PRIu64, number(row, "objects"));
		ctl_columns_add(&l->table, "%" PRIu64, number(row, "pieces"));
		ctl_columns_add(&l->table, "%.3f", (double)number(row, "bytes") / 1e9);
		ctl_columns_add(&l->table, "%s", text(row, "url"));
		return;
	}
	ctl_put(&l->out, "{\"dataset\":");
	if (named)
		ctl_put_string(&l->out, text(row, "dataset"));
	else
		ctl_put(&l->out, "null");
	ctl_put(&l->out, ",\"url\":");
	if (named)
		ctl_put_string(&l->out, text(row, "url"));
	else
		ctl_put(&l->out, "null");
	ctl_put(&l->out, ",");
	ctl_put_pair(&l->out, "objects", number(row, "objects"));
	ctl_put(&l->out, ",");
	ctl_put_pair(&l->out, "pieces", number(row, "pieces"));
	ctl_put(&l->out, ",");
	ctl_put_pair(&l->out, "bytes", number(row, "bytes"));
	ctl_put(&l->out, "}\n");
}

static bool put_all(struct list *l, struct ctl_link *link)
{
	json_t *all = ctl_cache_ask(link, "ls", NULL), *row;
	size_t i;

	if (!all)
		return false;
	json_array_foreach(json_object_get(all, "datasets"), i, row) put_row(l, row);
	if (number(json_object_get(all, "other"), "objects") > 0)
		put_row(l, json_object_get(all, "other"));
	if (json_is_true(json_object_get(all, "more")))
		ctl_note("the list is not complete: it has too many datasets for one message");
	json_decref(all);
	return ctl_columns_put(&l->table, &l->out);
}

static int list(const struct ctl_arguments *a)
{
	struct list *l = calloc(1, sizeof(*l));
	struct ctl_link *link = calloc(1, sizeof(*link));
	int code = CTL_FAILED;

	if (!l || !link) {
		ctl_fail(PHRASE_MEMORY);
	} else if (ctl_connect(link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		l->json = ctl_given(a, JSON);
		l->table = (struct ctl_columns){
			columns, sizeof(columns) / sizeof(columns[0]), 0, 0, 0};
		code = put_all(l, link) ? CTL_OK : CTL_FAILED;
		code = ctl_finish(&l->out, code);
		ctl_disconnect(link);
	}
	free(link);
	free(l);
	return code;
}

/* The daemon drops a part at a time, so that no reply takes long. */
static bool drop_all(struct ctl_link *link, const char *dataset, uint64_t *pieces)
{
	for (bool more = true; more;) {
		json_t *all = ctl_cache_ask(link, "drop", dataset);

		if (!all)
			return false;
		*pieces += number(all, "pieces");
		more = json_is_true(json_object_get(all, "more"));
		json_decref(all);
	}
	return true;
}

static int drop(const struct ctl_arguments *a)
{
	struct ctl_link *link = calloc(1, sizeof(*link));
	uint64_t pieces = 0;
	bool ok = false;

	if (!link)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		ok = drop_all(link, a->argument[0], &pieces);
		ctl_disconnect(link);
	}
	free(link);
	if (ok)
		printf("dropped %" PRIu64 " pieces\n", pieces);
	return ok ? CTL_OK : CTL_FAILED;
}

static const struct ctl_command ls_command = {
	.name = "cache ls",
	.help = "print what the cache holds of each dataset",
	.about = "Prints one line per dataset in a store: its objects and pieces in the cache, and "
		 "their size on the disk. The line (others) counts objects of no dataset of the "
		 "config.",
	.examples = CTL_EXAMPLES(
		{"list them, if the daemon has a cache", "tokctl cache ls -c tokend.yaml || true"}),
	.options = options,
	.count = OPTIONS,
	.run = list,
};

static const struct ctl_command drop_command = {
	.name = "cache drop",
	.arguments = "DATASET",
	.least = 1,
	.most = 1,
	.help = "remove a dataset from the cache",
	.about = "Removes the dataset's pieces, except those that are read at this moment. They "
		 "are fetched again when a session needs them. Only root, the daemon's user and "
		 "admin_uids may do it.",
	.examples = CTL_EXAMPLES({"make room, if the daemon has a cache",
		"tokctl cache drop web -c tokend.yaml || true"}),
	.options = options,
	.count = JSON,
	.run = drop,
};

const struct ctl_command ctl_cache = {
	.name = "cache",
	.help = "print, fetch or remove what a daemon's cache holds",
	.subcommands =
		(const struct ctl_command *const[]){
			&ls_command,
			&ctl_cache_warm,
			&drop_command,
			NULL,
		},
};
