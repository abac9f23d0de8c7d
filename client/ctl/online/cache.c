/* tokctl cache: what a daemon's cache holds, and removing a dataset from it. */
#include "client/ctl/common/emit.h"
#include "client/ctl/common/error.h"
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

static void put_row(struct emit *e, const json_t *row)
{
	bool named = text(row, "dataset")[0];

	emit_text(e, "dataset", NULL, named ? text(row, "dataset") : NULL);
	emit_text(e, NULL, "DATASET", named ? text(row, "dataset") : "(others)");
	emit_text(e, "url", NULL, named ? text(row, "url") : NULL);
	emit_number(e, "objects", "OBJECTS", number(row, "objects"));
	emit_number(e, "pieces", "PIECES", number(row, "pieces"));
	emit_bytes(e, "bytes", "SIZE", number(row, "bytes"));
	emit_text(e, NULL, "URL", text(row, "url"));
	emit_row(e);
}

/* Each stream has a row for its dataset. Has a row before number @n its URL? */
static bool is_listed(const json_t *rows, size_t n)
{
	const char *url = text(json_array_get(rows, n), "url");

	while (n-- > 0)
		if (strcmp(text(json_array_get(rows, n), "url"), url) == 0)
			return true;
	return false;
}

static bool put_all(struct emit *e, struct ctl_link *link)
{
	json_t *all = ctl_cache_ask(link, "ls", NULL), *rows = json_object_get(all, "datasets");

	if (!all)
		return false;
	for (size_t i = 0; i < json_array_size(rows); i++)
		if (!is_listed(rows, i))
			put_row(e, json_array_get(rows, i));
	if (number(json_object_get(all, "other"), "objects") > 0)
		put_row(e, json_object_get(all, "other"));
	if (json_is_true(json_object_get(all, "more")))
		ctl_note("the list is not complete: it has too many datasets for one message");
	json_decref(all);
	return true;
}

static int list(const struct ctl_arguments *a)
{
	struct emit e = {.json = ctl_given(a, JSON)};
	struct ctl_link *link = calloc(1, sizeof(*link));
	int code = CTL_FAILED;

	if (!link)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(link, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		code = emit_end(&e, put_all(&e, link) ? CTL_OK : CTL_FAILED);
		ctl_disconnect(link);
	}
	free(link);
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
