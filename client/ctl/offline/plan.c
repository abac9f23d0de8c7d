/*
 * tokctl plan: the window at each position, or the batch of each rank at a step. The code that
 * computes it is the daemon's.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/windows.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct plan {
	const struct ctl_history *history;
	const struct dataset **map; /* [datasets] */
	struct ctl_windows *reader; /* NULL: no --tokens */
	void *tokens;		    /* of one window */
	uint64_t window_tokens;
	uint32_t token_bytes;
	bool json;
	bool ranks; /* lines have a rank and a row */
	size_t position_width, dataset_width, window_width, offset_width;
};

struct line {
	uint64_t position, rank, row;
	bool padding; /* the row is after the end of a finite stream */
	struct order_place place;
	const char *shard;
	uint64_t number; /* of the shard */
	uint64_t offset;
};

/* ---- lines ---- */

static const char *dataset_name(const struct plan *p, const struct line *line)
{
	return p->history->widest->dataset[line->place.dataset].name;
}

static uint64_t token(const struct plan *p, uint64_t i)
{
	if (p->token_bytes == 2)
		return ((const uint16_t *)p->tokens)[i];
	return ((const uint32_t *)p->tokens)[i];
}

static void put_json_place(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	ctl_put_pair(out, "position", line->position);
	ctl_put(out, ",\"dataset\":");
	ctl_put_string(out, dataset_name(p, line));
	ctl_put(out, ",");
	ctl_put_pair(out, "epoch", line->place.epoch);
	ctl_put(out, ",");
	ctl_put_pair(out, "window", line->place.window);
	ctl_put(out, ",\"shard\":");
	ctl_put_string(out, line->shard);
	ctl_put(out, ",");
	ctl_put_pair(out, "offset", line->offset);
}

/* A viewer finds side files by the path. */
static void put_json_tokens(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(p->map[line->place.dataset], line->number, path, sizeof(path));
	ctl_put(out, ",\"path\":");
	ctl_put_string(out, path);
	for (uint64_t i = 0; i < p->window_tokens; i++) {
		ctl_put(out, i == 0 ? ",\"tokens\":[" : ",");
		ctl_put_number(out, token(p, i));
	}
	ctl_put(out, "]");
}

static void put_json(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	ctl_put(out, "{");
	if (line->padding)
		ctl_put(out, "\"position\":null,\"dataset\":null,\"epoch\":null,\"window\":null,"
			     "\"shard\":null,\"offset\":null");
	else
		put_json_place(out, p, line);
	if (p->ranks) {
		ctl_put(out, ",");
		ctl_put_pair(out, "rank", line->rank);
		ctl_put(out, ",");
		ctl_put_pair(out, "row", line->row);
	}
	if (p->reader && line->padding)
		ctl_put(out, ",\"path\":null,\"tokens\":null");
	else if (p->reader)
		put_json_tokens(out, p, line);
	ctl_put(out, "}\n");
}

enum { EPOCH_WIDTH = 6, RANK_WIDTH = 8, ROW_WIDTH = 5, GAP = 2, SOME_TOKENS = 8 };

static void put_text_place(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	ctl_put_right(out, line->position, p->position_width);
	ctl_put(out, "  ");
	ctl_put_left(out, dataset_name(p, line), p->dataset_width);
	ctl_put_right(out, line->place.epoch, GAP + EPOCH_WIDTH);
	ctl_put_right(out, line->place.window, GAP + p->window_width);
	ctl_put_right(out, line->offset, GAP + p->offset_width);
	ctl_put(out, "  ");
	ctl_put_left(out, line->shard, 0);
}

static void put_text(struct ctl_out *out, const struct plan *p, const struct line *line)
{
	if (p->ranks) {
		ctl_put_right(out, line->rank, RANK_WIDTH);
		ctl_put_right(out, line->row, GAP + ROW_WIDTH);
		ctl_put(out, "  ");
	}
	if (line->padding)
		ctl_put(out, "padding: the stream has ended");
	else
		put_text_place(out, p, line);
	for (uint64_t i = 0; p->reader && !line->padding && i < p->window_tokens && i < SOME_TOKENS;
		i++) {
		ctl_put(out, i == 0 ? "  " : " ");
		ctl_put_number(out, token(p, i));
	}
	ctl_put(out,
		p->reader && !line->padding && p->window_tokens > SOME_TOKENS ? " ...\n" : "\n");
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Makes each column as wide as its longest possible entry, which is known before the first line. */
static void measure(struct plan *p, uint64_t last)
{
	const struct cursor *cursor = p->history->widest;

	p->position_width = larger(8, ctl_digits(last));
	p->dataset_width = 7;
	p->window_width = 6;
	p->offset_width = 6;
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		p->dataset_width = larger(p->dataset_width, ctl_width(cursor->dataset[d].name));
		p->window_width = larger(p->window_width, ctl_digits(cursor->order[d].windows));
		for (uint64_t s = 0; p->map[d] && s < p->map[d]->table.shards; s++)
			p->offset_width =
				larger(p->offset_width, ctl_digits(p->map[d]->table.tokens[s]));
	}
}

static void put_name(struct ctl_out *out, const char *name, size_t width)
{
	ctl_put_left(out, "", width - ctl_width(name));
	ctl_put(out, name);
}

static void put_head(struct ctl_out *out, const struct plan *p)
{
	if (p->ranks) {
		put_name(out, "rank", RANK_WIDTH);
		put_name(out, "row", GAP + ROW_WIDTH);
		ctl_put(out, "  ");
	}
	put_name(out, "position", p->position_width);
	ctl_put(out, "  ");
	ctl_put_left(out, "dataset", p->dataset_width);
	put_name(out, "epoch", GAP + EPOCH_WIDTH);
	put_name(out, "window", GAP + p->window_width);
	put_name(out, "offset", GAP + p->offset_width);
	ctl_put(out, p->reader ? "  shard  tokens\n" : "  shard\n");
}

/* False after an error was printed. */
static bool fill(const struct plan *p, struct line *line)
{
	const struct cursor *cursor = p->history->widest;

	if (!order_at(&p->history->order, line->position, &line->place)) {
		ctl_fail("position %" PRIu64 " is not in the order", line->position);
		return false;
	}
	uint32_t d = line->place.dataset;

	if (!p->map[d]) {
		ctl_fail("position %" PRIu64 ": dataset %s is no longer in the config",
			line->position, cursor->dataset[d].name);
		return false;
	}
	table_locate(&p->map[d]->table, &cursor->order[d], cursor->seed, line->place.epoch,
		line->place.window, &line->number, &line->offset);
	line->shard = dataset_shard_name(p->map[d], line->number);
	return !p->reader || ctl_windows_read(p->reader, &line->place, p->tokens);
}

/* False after an error; the lines before it are printed. */
static bool put_line(struct ctl_out *out, const struct plan *p, struct line *line)
{
	if (!line->padding && !fill(p, line))
		return false;
	(p->json ? put_json : put_text)(out, p, line);
	return !out->failed;
}

/* ---- a range of positions ---- */

struct query {
	const char *config, *stream, *run;
	const char **cursors;
	unsigned cursor_count;
	uint64_t from, count;
	uint64_t step, world, micro_batch, rank;
	bool has_from, ranks, one_rank, tokens, json;
};

/* Is @from between the first known mix and the stream's end? Prints an error otherwise. */
static bool known(const struct ctl_history *h, uint64_t from)
{
	uint64_t first = h->order.segment[0]->start, end = cursor_end(h->widest);

	if (from < first)
		ctl_fail("--from %" PRIu64 ": the mixes before position %" PRIu64
			 " are unknown; add a --cursor saved earlier",
			from, first);
	else if (from > end)
		ctl_fail("--from %" PRIu64 ": stream %s ends at position %" PRIu64, from,
			h->widest->stream, end);
	else
		return true;
	return false;
}

static int print_range(struct plan *p, const struct query *q)
{
	struct ctl_out out = {0};
	uint64_t end = cursor_end(p->history->widest);
	uint64_t to = q->count < end - q->from ? q->from + q->count : end;
	bool good = true;

	if (!p->json) {
		measure(p, to);
		if (q->from < to)
			put_head(&out, p);
	}
	for (uint64_t i = q->from; i < to && good; i++)
		good = put_line(&out, p, &(struct line){.position = i});
	return ctl_finish(&out, good ? CTL_OK : CTL_FAILED);
}

/* ---- a step ---- */

static int print_step(struct plan *p, const struct query *q)
{
	uint64_t end = cursor_end(p->history->widest), global = q->world * q->micro_batch;
	uint64_t steps = (end - q->from) / global + ((end - q->from) % global != 0);
	uint64_t first = q->one_rank ? q->rank : 0, last = q->one_rank ? q->rank : q->world - 1;
	struct ctl_out out = {0};
	bool good = true;

	if (steps == 0)
		return ctl_fail("--step %" PRIu64 ": stream %s ends at position %" PRIu64
				", so there are no steps from there",
			q->step, p->history->widest->stream, end);
	if (q->step >= steps)
		return ctl_fail("--step %" PRIu64 ": from position %" PRIu64
				" stream %s has %" PRIu64 " steps of %" PRIu64
				" samples; the last is step %" PRIu64,
			q->step, q->from, p->history->widest->stream, steps, global, steps - 1);
	if (!p->json) {
		measure(p, order_rank_position(
				   q->from, q->step, q->world - 1, q->world, q->micro_batch));
		put_head(&out, p);
	}
	for (uint64_t rank = first; rank <= last && good; rank++) {
		uint64_t at = order_rank_position(q->from, q->step, rank, q->world, q->micro_batch);

		for (uint64_t row = 0; row < q->micro_batch && good; row++) {
			struct line line = {
				.rank = rank, .row = row, .padding = at >= end || row >= end - at};

			line.position = line.padding ? end : at + row;
			good = put_line(&out, p, &line);
		}
	}
	return ctl_finish(&out, good ? CTL_OK : CTL_FAILED);
}

/* ---- the query ---- */

static int with_history(const struct ctl_stream *s, const struct ctl_history *h, struct query *q)
{
	struct plan p = {
		.history = h,
		.map = calloc(h->widest->datasets, sizeof(const struct dataset *)),
		.window_tokens = h->widest->seq_len + h->widest->extra,
		.token_bytes = s->stream->token_bytes,
		.json = q->json,
		.ranks = q->ranks,
	};
	int status = CTL_FAILED;

	if (q->tokens) {
		p.reader = ctl_windows_open(s, h);
		p.tokens = calloc(p.window_tokens, p.token_bytes);
	}
	/* Steps are counted from the position of the only cursor. */
	if (!q->has_from)
		q->from = q->cursor_count == 1 ? h->widest->next : 0;
	if (!p.map || (q->tokens && (!p.reader || !p.tokens))) {
		ctl_fail(PHRASE_MEMORY);
	} else if (known(h, q->from)) {
		stream_map(s->stream, h->widest, p.map);
		status = q->ranks ? print_step(&p, q) : print_range(&p, q);
	}
	ctl_windows_close(p.reader);
	free(p.tokens);
	free(p.map);
	return status;
}

static int answer(struct query *q)
{
	struct ctl_stream s;
	struct ctl_history history;
	int status = CTL_FAILED;

	if (!ctl_stream_open(&s, q->config, q->stream))
		return CTL_FAILED;
	if (ctl_history_open(&history, &s, q->cursors, q->cursor_count, q->run)) {
		status = with_history(&s, &history, q);
		ctl_history_close(&history);
	}
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, FROM, COUNT, STEP, WORLD, MICRO, RANK, CURSOR, RUN, TOKENS, JSON };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_REQUIRED,
	[FROM] = {.name = "from",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX,
		.help = "first position to print; with --step, the position of step 0; by "
			"default that of a single --cursor, otherwise 0"},
	[COUNT] = {.name = "count",
		.kind = CTL_NUMBER,
		.value = "N",
		.most = UINT64_MAX,
		.help = "number of positions to print"},
	[STEP] = {.name = "step",
		.kind = CTL_NUMBER,
		.value = "N",
		.most = UINT64_MAX,
		.help = "print the batch of each rank at this step, counted from 0, instead of a "
			"range"},
	[WORLD] = {.name = "world",
		.kind = CTL_NUMBER,
		.value = "W",
		.least = 1,
		.most = LIMIT_WORLD,
		.help = "number of ranks, for --step"},
	[MICRO] = {.name = "micro",
		.kind = CTL_NUMBER,
		.value = "B",
		.least = 1,
		.most = LIMIT_MICRO_BATCH,
		.help = "rows per batch, for --step"},
	[RANK] = {.name = "rank",
		.kind = CTL_NUMBER,
		.value = "R",
		.most = LIMIT_WORLD,
		.help = "print only this rank, for --step"},
	[CURSOR] = CTL_HISTORY_CURSOR,
	[RUN] = CTL_HISTORY_RUN,
	[TOKENS] = {.name = "tokens",
		.kind = CTL_FLAG,
		.help = "print the tokens too: the first 8, or all with --json"},
	[JSON] = CTL_JSON_OPTION,
};

/* Checks which options are given together. */
static int check_options(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	bool step = ctl_given(a, STEP), world = ctl_given(a, WORLD), micro = ctl_given(a, MICRO);

	if (a->arguments > 1 && !ctl_given(a, CURSOR))
		return ctl_usage(c, "unexpected argument '%s'", a->argument[1]);
	if (ctl_given(a, RUN) && ctl_given(a, CURSOR))
		return ctl_usage(c, "--run and --cursor exclude each other");
	if (!step && (world || micro || ctl_given(a, RANK)))
		return ctl_usage(c, "--world, --micro and --rank need --step");
	if (!step && (!ctl_given(a, FROM) || !ctl_given(a, COUNT)))
		return ctl_usage(c, "needs --from and --count, or --step, --world and --micro");
	if (step && ctl_given(a, COUNT))
		return ctl_usage(c, "--step and --count exclude each other");
	if (step && (!world || !micro))
		return ctl_usage(c, "--step needs --world and --micro");
	if (step && !ctl_given(a, FROM) && a->value[CURSOR].count + a->arguments > 2)
		return ctl_usage(
			c, "--step with several cursors needs --from, the position of step 0");
	if (ctl_given(a, RANK) && ctl_number(a, RANK, 0) >= ctl_number(a, WORLD, 0))
		return ctl_usage(c, "--rank %s: must be below the world, %s", ctl_text(a, RANK),
			ctl_text(a, WORLD));
	return CTL_OK;
}

static int plan(const struct ctl_arguments *a)
{
	struct query q = {.config = ctl_text(a, CONFIG),
		.stream = a->argument[0],
		.run = ctl_text(a, RUN),
		.from = ctl_number(a, FROM, 0),
		.count = ctl_number(a, COUNT, 0),
		.step = ctl_number(a, STEP, 0),
		.world = ctl_number(a, WORLD, 0),
		.micro_batch = ctl_number(a, MICRO, 0),
		.rank = ctl_number(a, RANK, 0),
		.has_from = ctl_given(a, FROM),
		.ranks = ctl_given(a, STEP),
		.one_rank = ctl_given(a, RANK),
		.tokens = ctl_given(a, TOKENS),
		.json = ctl_given(a, JSON)};
	int status = check_options(a);

	if (status != CTL_OK)
		return status;
	q.cursors = ctl_list(a, CURSOR, 1, &q.cursor_count);
	return answer(&q);
}

const struct ctl_command ctl_plan = {
	.name = "plan",
	.arguments = "STREAM",
	.least = 1,
	.most = CTL_ANY, /* "--cursor A B": the shell's way of giving several */
	.help = "print which windows a stream serves at given positions or at a step",
	.about = "Computes the order of a stream from the config; it needs no daemon. With --from "
		 "and --count it prints one line per position: dataset, epoch, window, the offset "
		 "of its first token, and shard. With --step, --world and --micro it prints the "
		 "rows of each rank's batch at that step, as the ranks get them.\n\n"
		 "If the mix was changed while the run was going on, the config alone does not "
		 "give its order: add --run, or cursors of the run with --cursor.",
	.examples = CTL_EXAMPLES(
		{"the first four samples", "tokctl plan train -c tokend.yaml --from 0 --count 4"},
		{"what 2 ranks with 4 rows each get at step 10",
			"tokctl plan train -c tokend.yaml --step 10 --world 2 --micro 4"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = plan,
};
