/* tokctl cursor show: prints a cursor file, or the cursors in a checkpoint. */
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/cursor.h"
#include "proto/cursor_json.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { JSON };

static const struct ctl_option options[] = {[JSON] = CTL_JSON_OPTION};

static void show_datasets(struct emit *e, const struct cursor *c)
{
	char text[ORDER_PART_BYTES];

	emit_table(e);
	for (uint32_t d = 0; d < c->datasets; d++) {
		const struct cursor_dataset *dataset = &c->dataset[d];
		uint64_t ends_at = 0, unserved = 0;
		bool ends = cursor_unserved(c, d, &ends_at, &unserved);

		emit_text(e, NULL, "dataset", dataset->name);
		emit_number(e, NULL, "windows", c->order[d].windows);
		emit_cell(e, "digest", "%016" PRIx64, dataset->digest);
		emit_optional(e, NULL, "max_epochs", dataset->max_epochs, dataset->max_epochs > 0);
		emit_optional(e, NULL, "ends at", ends_at, ends);
		emit_optional(e, NULL, "never served", unserved, ends);
		emit_text(e, NULL, "part", order_part_text(dataset->lo, dataset->hi, text));
		emit_row(e);
	}
}

static void show_mixes(struct emit *e, const struct cursor *c)
{
	uint32_t now = cursor_past(c);
	char text[CTL_MIX_BYTES];

	emit_table(e);
	for (uint32_t i = 0; i < c->segments; i++) {
		emit_text(e, NULL, "mix", i < now ? "past" : i == now ? "current" : "pending");
		emit_number(e, NULL, "from", c->segment[i]->start);
		emit_text(e, NULL, "shares", ctl_mix_text(c, c->segment[i], text));
		emit_row(e);
	}
	if (c->segment[0]->start > 0)
		emit_line(e, "mixes before position %" PRIu64 " had no room", c->segment[0]->start);
}

static void show_fields(struct emit *e, const struct cursor *c)
{
	bool finite = c->epochs || c->samples;

	emit_text(e, NULL, "stream", c->stream);
	emit_number(e, NULL, "seed", c->seed);
	emit_cell(e, "window", "%" PRIu64 " + %" PRIu64 " tokens, stride %" PRIu64, c->seq_len,
		c->extra, c->stride);
	emit_number(e, NULL, "next", c->next);
	emit_optional(e, NULL, "end", cursor_end(c), finite);
	if (c->epochs)
		emit_number(e, NULL, "epochs", c->epochs);
}

/* @found: where it was found; NULL: in a file of its own. False after an error was printed. */
static bool show(struct emit *e, const struct cursor *c, const struct cursor_found *found)
{
	char *json = e->json ? malloc(CURSOR_JSON_BYTES) : NULL;
	bool good = !e->json || (json && cursor_json(c, json, CURSOR_JSON_BYTES) > 0);

	if (good && json)
		emit_members(e, json);
	free(json);
	if (!good)
		return ctl_fail(PHRASE_MEMORY) == CTL_OK;
	emit_fields(e);
	if (found) {
		emit_text(e, "file", "file", found->path);
		emit_number(e, "offset", "byte", found->offset);
		emit_json(e, "compressed", "false");
		emit_number(e, "places", "places", found->places);
	}
	if (!e->json) {
		show_fields(e, c);
		emit_line(e, "%s", "");
		show_datasets(e, c);
		emit_line(e, "%s", "");
		show_mixes(e, c);
	}
	emit_row(e);
	return true;
}

static int show_checkpoint(const char *path, bool json)
{
	struct emit e = {.json = json};
	struct cursor_scan scan;
	bool good = cursor_scan(&scan, path);

	for (size_t i = 0; good && i < scan.n; i++) {
		if (i > 0)
			emit_line(&e, "%s", "");
		good = show(&e, &scan.found[i].cursor, &scan.found[i]);
	}
	if (good && scan.damaged > 0)
		ctl_note("%s: %" PRIu64 " cursors in it are damaged", path, scan.damaged);
	if (good && scan.n == 0)
		good = ctl_fail("%s: contains no cursor (%" PRIu64 " bytes in %" PRIu64
				" file%s); a checkpoint has one if it stores a Loader's "
				"state_dict(), and is not compressed",
			       path, scan.bytes, scan.files, scan.files == 1 ? "" : "s") == CTL_OK;
	cursor_scan_free(&scan);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

/* A directory, or a file that does not begin like a cursor. */
static bool is_checkpoint(const char *path)
{
	char bytes[4] = "";
	struct stat st;
	FILE *file;
	size_t n;

	if (stat(path, &st) != 0)
		return false;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	return n > 0 && memcmp(bytes, "tkdc", n) != 0;
}

static int run(const struct ctl_arguments *a)
{
	struct emit e = {.json = ctl_given(a, JSON)};
	struct cursor c;
	bool good;

	if (is_checkpoint(a->argument[0]))
		return show_checkpoint(a->argument[0], e.json);
	good = ctl_cursor_read(&c, a->argument[0], NULL) && show(&e, &c, NULL);
	cursor_free(&c);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

const struct ctl_command ctl_cursor_show = {
	.name = "cursor show",
	.arguments = "FILE",
	.help = "print a cursor, or those in a checkpoint",
	OPTIONS_ARE(options),
	.run = run,
};
