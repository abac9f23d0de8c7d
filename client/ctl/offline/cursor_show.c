/* tokctl cursor show. */
#include "client/ctl/offline/cursor_show.h"

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/columns.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/share.h"
#include "client/ctl/offline/cursor_scan.h"
#include "proto/cursor_json.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

enum {
	COLUMNS = 2, /* up to this many segments are columns; if there are more, each is a line */
	SHARE_WIDTH = 13,
};

enum { JSON };

static const struct ctl_option options[] = {[JSON] = CTL_JSON_OPTION};

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void put_spaces(struct ctl_out *out, size_t n)
{
	ctl_put_left(out, "", n);
}

/* Puts text right-aligned in @width. */
static void put_end(struct ctl_out *out, const char *text, size_t width)
{
	size_t n = ctl_width(text);

	put_spaces(out, n < width ? width - n : 0);
	ctl_put_left(out, text, 0);
}

/* ---- show ---- */

/* Three cells: max_epochs of a dataset, where it ends, and how many windows remain unserved. */
static void add_limit(struct ctl_columns *table, const struct cursor *c, uint32_t d)
{
	uint64_t ends_at, unserved;
	bool ends = cursor_unserved(c, d, &ends_at, &unserved);

	if (c->dataset[d].max_epochs == 0)
		ctl_columns_add(table, "-");
	else
		ctl_columns_add(table, "%" PRIu64, c->dataset[d].max_epochs);
	if (ends) {
		ctl_columns_add(table, "%" PRIu64, ends_at);
		ctl_columns_add(table, "%" PRIu64, unserved);
	} else {
		ctl_columns_add(table, "-");
		ctl_columns_add(table, "-");
	}
}

/* One line per dataset; if there are few segments, with its share of each. */
static bool show_datasets(struct ctl_out *out, const struct cursor *c)
{
	const struct order order = cursor_order(c);
	uint32_t segments = order.segments <= COLUMNS ? order.segments : 0;
	struct ctl_column columns[3 + 2 + 3 + COLUMNS] = {
		{"dataset", false}, {"windows", true}, {"digest", false}};
	struct ctl_columns table = {.column = columns, .n = 3};
	bool limits = false, parts = false;
	char head[COLUMNS][64], part[ORDER_PART_BYTES];

	for (uint32_t d = 0; d < c->datasets; d++) {
		limits |= c->dataset[d].max_epochs > 0;
		parts |= c->order[d].part.of > 0;
	}
	if (parts) {
		columns[table.n++] = (struct ctl_column){"part", false};
		columns[table.n++] = (struct ctl_column){"of windows", true};
	}
	if (limits) {
		columns[table.n++] = (struct ctl_column){"max_epochs", true};
		columns[table.n++] = (struct ctl_column){"ends at", true};
		columns[table.n++] = (struct ctl_column){"never served", true};
	}
	for (uint32_t i = 0; i < segments; i++) {
		snprintf(head[i], sizeof(head[i]), "%sfrom %" PRIu64, i ? "pending " : "",
			order.segment[i]->start);
		columns[table.n++] = (struct ctl_column){head[i], true};
	}
	for (uint32_t d = 0; d < c->datasets; d++) {
		ctl_columns_add(&table, "%s", c->dataset[d].name);
		ctl_columns_add(&table, "%" PRIu64, c->order[d].windows);
		ctl_columns_add(&table, "%016" PRIx64, c->dataset[d].digest);
		if (parts) {
			ctl_columns_add(&table, "%s",
				order_part_text(c->dataset[d].lo, c->dataset[d].hi, part));
			ctl_columns_add(&table, "%" PRIu64, order_path_windows(&c->order[d]));
		}
		if (limits)
			add_limit(&table, c, d);
		for (uint32_t i = 0; i < segments; i++)
			ctl_columns_add(&table, "%s", ctl_share(order.segment[i], d).text);
	}
	return ctl_columns_put(&table, out);
}

static bool has_units(const struct order *order, uint32_t d)
{
	for (uint32_t i = 0; i < order->segments; i++)
		if (ctl_units(order->segment[i], d) > 0)
			return true;
	return false;
}

/* One line per segment of @order, one column per dataset that has weight in any. */
static void show_segments(
	struct ctl_out *out, const struct cursor *c, const struct order *order, const char *head)
{
	size_t width[LIMIT_DATASETS] = {0};

	ctl_put(out, "\n");
	put_end(out, head, 24);
	for (uint32_t d = 0; d < c->datasets; d++) {
		if (!has_units(order, d))
			continue;
		width[d] = larger(SHARE_WIDTH, 2 + ctl_width(c->dataset[d].name));
		put_end(out, c->dataset[d].name, width[d]);
	}
	ctl_put(out, "\n");
	for (uint32_t i = 0; i < order->segments; i++) {
		ctl_put_right(out, order->segment[i]->start, 24);
		for (uint32_t d = 0; d < c->datasets; d++)
			if (width[d])
				put_end(out, ctl_share(order->segment[i], d).text, width[d]);
		ctl_put(out, "\n");
	}
}

static bool show_text(struct ctl_out *out, const struct cursor *c)
{
	const struct order order = cursor_order(c);
	struct order past = cursor_history(c);
	char line[256];

	past.segments -= order.segments;
	ctl_put(out, "stream   ");
	ctl_put_left(out, c->stream, 0);
	snprintf(line, sizeof(line),
		"\nseed     %" PRIu64 "\nwindow   %" PRIu64 " + %" PRIu64 " tokens, stride %" PRIu64
		"\nnext     %" PRIu64 "\n",
		c->seed, c->seq_len, c->extra, c->stride, c->next);
	ctl_put(out, line);
	if (c->epochs)
		snprintf(line, sizeof(line), "end      %" PRIu64 " (epochs %" PRIu64 ")\n",
			cursor_end(c), c->epochs);
	else if (c->samples)
		snprintf(line, sizeof(line), "end      %" PRIu64 "\n", c->samples);
	else
		snprintf(line, sizeof(line), "end      none\n");
	ctl_put(out, line);
	snprintf(line, sizeof(line), "mix      from %" PRIu64 ", ", order.segment[0]->start);
	ctl_put(out, line);
	if (order.segments == 1)
		snprintf(line, sizeof(line), "none pending\n");
	else
		snprintf(line, sizeof(line), "%" PRIu32 " pending, the next from %" PRIu64 "\n",
			order.segments - 1, order.segment[1]->start);
	ctl_put(out, line);
	if (past.segments > 0)
		snprintf(line, sizeof(line),
			"past     %" PRIu32 " mix%s, the first from %" PRIu64 "%s\n\n",
			past.segments, past.segments == 1 ? "" : "es", c->segment[0]->start,
			c->segment[0]->start > 0 ? "; older ones had no room" : "");
	else
		snprintf(line, sizeof(line), "past     %s\n\n",
			c->segment[0]->start > 0 ? "none; older mixes had no room" : "none");
	ctl_put(out, line);
	if (!show_datasets(out, c))
		return false;
	if (order.segments > COLUMNS)
		show_segments(out, c, &order, "mix from");
	if (past.segments > 0)
		show_segments(out, c, &past, "past mix from");
	return true;
}

/* @found: NULL, or where it was found. */
static int show_json(struct ctl_out *out, const struct cursor *c, const struct cursor_found *found)
{
	char *json = malloc(CURSOR_JSON_BYTES);
	size_t n = json ? cursor_json(c, json, CURSOR_JSON_BYTES) : 0;

	if (n == 0) {
		free(json);
		return ctl_fail(PHRASE_MEMORY);
	}
	if (found)
		json[strlen(json) - 1] = 0; /* the closing brace */
	ctl_put(out, json);
	if (found) {
		ctl_put(out, ",\"file\":");
		ctl_put_string(out, found->path);
		ctl_put(out, ",");
		ctl_put_pair(out, "offset", found->offset);
		ctl_put(out, ",\"compressed\":false,");
		ctl_put_pair(out, "places", found->more + 1);
		ctl_put(out, "}");
	}
	ctl_put(out, "\n");
	free(json);
	return CTL_OK;
}

/* ---- checkpoints ---- */

static void put_place(struct ctl_out *out, const struct cursor_found *f)
{
	char text[128];

	ctl_put_left(out, f->path, 0);
	snprintf(text, sizeof(text), ": byte %" PRIu64, f->offset);
	ctl_put(out, text);
	if (f->more > 0)
		snprintf(
			text, sizeof(text), ", and %" PRIu64 " more with the same cursor", f->more);
	ctl_put(out, f->more > 0 ? text : "");
	ctl_put(out, "\n");
}

static int show_scan(struct ctl_out *out, const struct cursor_scan *scan, bool json)
{
	int status = CTL_OK;

	for (unsigned i = 0; i < scan->n && status == CTL_OK; i++) {
		const struct cursor_found *f = &scan->found[i];

		if (json) {
			status = show_json(out, &f->cursor, f);
			continue;
		}
		ctl_put(out, i ? "\n" : "");
		put_place(out, f);
		status = show_text(out, &f->cursor) ? CTL_OK : CTL_FAILED;
	}
	return status;
}

/* Prints the cursors in a checkpoint. */
static int show_checkpoint(const char *path, bool json)
{
	struct ctl_out out = {0};
	struct cursor_scan scan;
	int status = CTL_FAILED;

	if (cursor_scan(&scan, path)) {
		status = ctl_finish(&out, show_scan(&out, &scan, json));
		if (scan.damaged > 0)
			ctl_note("%s: %" PRIu64 " cursors in it are damaged", path, scan.damaged);
		if (scan.n == 0)
			status = ctl_fail("%s: contains no cursor (%" PRIu64 " bytes in %" PRIu64
					  " file%s); a checkpoint has one if it stores a Loader's "
					  "state_dict(), and is not compressed",
				path, scan.bytes, scan.files, scan.files == 1 ? "" : "s");
	}
	cursor_scan_free(&scan);
	return status;
}

/* A directory, or a file that does not begin like a cursor. */
static bool is_checkpoint(const char *path)
{
	char bytes[4] = "";
	struct stat st;
	FILE *file;

	if (stat(path, &st) < 0)
		return false;
	if (S_ISDIR(st.st_mode))
		return true;
	file = S_ISREG(st.st_mode) ? fopen(path, "re") : NULL;
	if (!file)
		return false;
	size_t n = fread(bytes, 1, sizeof(bytes), file);

	fclose(file);
	return n > 0 && memcmp(bytes, "tkdc", n) != 0;
}

static int show(const struct ctl_arguments *a)
{
	struct ctl_out out = {0};
	struct cursor c;
	int status = CTL_FAILED;

	if (is_checkpoint(a->argument[0]))
		return show_checkpoint(a->argument[0], ctl_given(a, JSON));
	if (ctl_cursor_read(&c, a->argument[0], NULL)) {
		if (ctl_given(a, JSON))
			status = show_json(&out, &c, NULL);
		else
			status = show_text(&out, &c) ? CTL_OK : CTL_FAILED;
		status = ctl_finish(&out, status);
	}
	cursor_free(&c);
	return status;
}

const struct ctl_command ctl_cursor_show = {
	.name = "cursor show",
	.arguments = "FILE",
	.least = 1,
	.most = 1,
	.help = "print a cursor, or those in a checkpoint",
	.about = "Prints the stream, the position of the next sample, the datasets, and their "
		 "shares in the current mix and in pending ones.\n\n"
		 "FILE is a cursor file; or a checkpoint that stores a Loader's state_dict(): a "
		 "file of torch.save(), a directory of torch.distributed.checkpoint, or "
		 "JSON. Of a checkpoint, each cursor is printed once, "
		 "with the place where it was found first.",
	.examples = CTL_EXAMPLES({"print a cursor", "tokctl cursor show run.cursor"},
		{"print the cursors of all files below a directory", "tokctl cursor show ."}),
	.options = options,
	.count = COUNT(options),
	.run = show,
};
