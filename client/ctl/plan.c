/*
 * tokctl plan: what is served at each position, computed as the daemon computes it.
 */
#include "ctl.h"

#include <inttypes.h>
#include <stdlib.h>

struct plan {
	const struct cursor *cursor;
	struct order order;
	const struct dataset **map; /* [cursor->datasets] */
	bool json;
	size_t position_width, dataset_width, window_width, offset_width;
};

struct line {
	uint64_t position;
	struct order_place place;
	const char *shard;
	uint64_t offset;
};

static void print_json(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	ctl_put(out, "{");
	ctl_put_pair(out, "position", line->position);
	ctl_put(out, ",\"dataset\":");
	ctl_put_string(out, p->cursor->dataset[line->place.dataset].name);
	ctl_put(out, ",");
	ctl_put_pair(out, "epoch", line->place.epoch);
	ctl_put(out, ",");
	ctl_put_pair(out, "window", line->place.window);
	ctl_put(out, ",\"shard\":");
	ctl_put_string(out, line->shard);
	ctl_put(out, ",");
	ctl_put_pair(out, "offset", line->offset);
	ctl_put(out, "}\n");
}

enum { EPOCH_WIDTH = 6, GAP = 2 };

static void print_text(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	ctl_put_right(out, line->position, p->position_width);
	ctl_put(out, "  ");
	ctl_put_left(out, p->cursor->dataset[line->place.dataset].name, p->dataset_width);
	ctl_put_right(out, line->place.epoch, GAP + EPOCH_WIDTH);
	ctl_put_right(out, line->place.window, GAP + p->window_width);
	ctl_put_right(out, line->offset, GAP + p->offset_width);
	ctl_put(out, "  ");
	ctl_put_left(out, line->shard, 0);
	ctl_put(out, "\n");
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Columns as wide as anything that may come, known before the first line. */
static void measure(struct plan *p, uint64_t last)
{
	p->position_width = larger(8, ctl_digits(last));
	p->dataset_width = 7;
	p->window_width = 6;
	p->offset_width = 6;
	for (uint32_t d = 0; d < p->cursor->datasets; d++) {
		p->dataset_width = larger(p->dataset_width, ctl_width(p->cursor->dataset[d].name));
		p->window_width = larger(p->window_width, ctl_digits(p->cursor->order[d].windows));
		for (uint64_t s = 0; p->map[d] && s < p->map[d]->table.shards; s++)
			p->offset_width = larger(p->offset_width, ctl_digits(p->map[d]->table.tokens[s]));
	}
}

static void print_head(struct ctl_out *out, const struct plan *p)
{
	static const char *const names[] = {"position", "dataset", "epoch", "window", "offset"};
	const size_t widths[] = {p->position_width, p->dataset_width, GAP + EPOCH_WIDTH,
		GAP + p->window_width, GAP + p->offset_width};

	for (int i = 0; i < 5; i++) {
		if (i == 1) {
			ctl_put(out, "  ");
			ctl_put_left(out, names[i], widths[i]);
			continue;
		}
		ctl_put_left(out, "", widths[i] - ctl_width(names[i]));
		ctl_put(out, names[i]);
	}
	ctl_put(out, "  shard\n");
}

static int print(const struct plan *p, uint64_t from, uint64_t to)
{
	struct ctl_out out = {0};

	if (!p->json && from < to)
		print_head(&out, p);
	for (uint64_t i = from; i < to && !out.failed; i++) {
		struct line line = {.position = i};
		uint64_t shard;

		if (!order_at(&p->order, i, &line.place))
			return ctl_fail("position %" PRIu64 " has no place in the order", i);
		uint32_t d = line.place.dataset;

		table_locate(&p->map[d]->table, &p->cursor->order[d], p->order.seed, line.place.epoch,
			line.place.window, &shard, &line.offset);
		line.shard = dataset_shard_name(p->map[d], shard);
		(p->json ? print_json : print_text)(&out, p, &line);
	}
	return ctl_finish(&out, CTL_OK);
}

/* @from and @count against what the cursor knows. */
static int plan(
	const struct stream *stream, const struct cursor *cursor, uint64_t from, uint64_t count, bool json)
{
	struct plan p = {.cursor = cursor, .order = cursor_order(cursor), .json = json};
	uint64_t end = cursor_end(cursor), known = cursor->segment[0]->start;
	int status;

	if (from < known)
		return ctl_fail("--from %" PRIu64 " lies before %" PRIu64
				", where the cursor's first known mix begins: give a cursor saved earlier",
			from, known);
	if (from > end)
		return ctl_fail("--from %" PRIu64 " lies beyond the end of stream %s, %" PRIu64, from,
			cursor->stream, end);
	p.map = calloc(cursor->datasets, sizeof(const struct dataset *));
	if (!p.map)
		return ctl_fail("out of memory");
	stream_map(stream, cursor, p.map);
	uint64_t to = count < end - from ? from + count : end;

	if (!json)
		measure(&p, to);
	status = print(&p, from, to);
	free(p.map);
	return status;
}

int ctl_plan(int argc, char **argv)
{
	const char *config = NULL, *from_text = NULL, *count_text = NULL, *cursor_path = NULL;
	bool json = false;
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "from", .value = &from_text},
		{.name = "count", .value = &count_text},
		{.name = "cursor", .value = &cursor_path},
		{.name = "json", .flag = &json},
	};
	int n = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0])), status = CTL_FAILED;
	struct cursor cursor = {0};
	struct ctl_stream s;
	uint64_t from, count;

	if (n < 0)
		return CTL_USAGE;
	if (n != 1 || !config || !from_text || !count_text)
		return ctl_usage(argv[0], "needs -c FILE, one STREAM, --from and --count");
	if (!ctl_number(from_text, &from) || !ctl_number(count_text, &count))
		return ctl_usage(argv[0], "--from and --count must be whole numbers below 2^64");
	if (!ctl_stream_open(&s, config, argv[1]))
		return CTL_FAILED;
	if (!cursor_path)
		status = plan(s.stream, &s.stream->begin, from, count, json);
	else if (ctl_cursor_read(&cursor, cursor_path, s.stream))
		status = plan(s.stream, &cursor, from, count, json);
	cursor_free(&cursor);
	ctl_stream_close(&s);
	return status;
}
