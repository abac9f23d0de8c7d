/*
 * tokctl plan: the window at each position, or the batch of each rank at a step. The code that
 * computes it is the daemon's.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/cost_report.h"
#include "client/ctl/offline/plan_line.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* False after an error was printed. */
static bool fill(const struct plan *p, struct plan_line *line)
{
	const struct cursor *cursor = &p->history->cursor;

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
	return true;
}

/* Reads the tokens of the block's lines. Returns how many lines can be printed. */
static uint64_t read_tokens(struct plan *p)
{
	size_t bytes = p->window_tokens * p->token_bytes;
	uint64_t n = 0, read, line = 0;

	for (uint64_t i = 0; i < p->held; i++)
		if (!p->lines[i].padding) {
			p->lines[i].tokens = (const char *)p->tokens + n * bytes;
			p->windows[n++] = (struct ctl_window){&p->history->cursor,
				p->map[p->lines[i].place.dataset], p->lines[i].place};
		}
	read = ctl_windows_read(p->reader, p->windows, n, p->tokens);
	for (uint64_t seen = 0; line < p->held; line++)
		if (!p->lines[line].padding && ++seen > read)
			break;
	return line;
}

/* Prints the block. False after an error; the lines before it are printed. */
static bool put_block(struct ctl_out *out, struct plan *p)
{
	uint64_t held = p->held, good = p->reader ? read_tokens(p) : held;

	for (uint64_t i = 0; i < good && !out->failed; i++)
		plan_put(out, p, &p->lines[i]);
	p->held = 0;
	return good == held && !out->failed;
}

static bool put_line(struct ctl_out *out, struct plan *p, struct plan_line *line)
{
	if (!line->padding && !fill(p, line)) {
		put_block(out, p);
		return false;
	}
	p->lines[p->held++] = *line;
	return p->held < p->block || put_block(out, p);
}

/* ---- a range of positions ---- */

struct query {
	const char *config, *stream, *run;
	const char **cursors;
	unsigned cursor_count;
	uint64_t from, count;
	uint64_t step, world, micro_batch, rank;
	bool has_from, ranks, one_rank, tokens, json;
	bool cost;
	double cost_tokens;
	uint64_t nodes;
	struct cost_prices prices;
};

/* Is @from between the first known mix and the stream's end? Prints an error otherwise. */
static bool known(const struct ctl_history *h, uint64_t from)
{
	uint64_t first = h->order.segment[0]->start, end = cursor_end(&h->cursor);

	if (from < first)
		ctl_fail("--from %" PRIu64 ": the mixes before position %" PRIu64
			 " are unknown; give a --cursor saved earlier",
			from, first);
	else if (from > end)
		ctl_fail("--from %" PRIu64 ": stream %s ends at position %" PRIu64, from,
			h->cursor.stream, end);
	else
		return true;
	return false;
}

static int print_range(struct plan *p, const struct query *q)
{
	struct ctl_out out = {0};
	uint64_t end = cursor_end(&p->history->cursor);
	uint64_t to = q->count < end - q->from ? q->from + q->count : end;
	bool good = true;

	if (!p->json) {
		plan_measure(p, to);
		if (q->from < to)
			plan_put_head(&out, p);
	}
	for (uint64_t i = q->from; i < to && good; i++)
		good = put_line(&out, p, &(struct plan_line){.position = i});
	good = good && put_block(&out, p);
	return ctl_finish(&out, good ? CTL_OK : CTL_FAILED);
}

/* ---- a step ---- */

static int print_step(struct plan *p, const struct query *q)
{
	uint64_t end = cursor_end(&p->history->cursor), global = q->world * q->micro_batch;
	uint64_t steps = (end - q->from) / global + ((end - q->from) % global != 0);
	uint64_t first = q->one_rank ? q->rank : 0, last = q->one_rank ? q->rank : q->world - 1;
	struct ctl_out out = {0};
	bool good = true;

	if (steps == 0)
		return ctl_fail("--step %" PRIu64 ": stream %s ends at position %" PRIu64
				", so there are no steps from there",
			q->step, p->history->cursor.stream, end);
	if (q->step >= steps)
		return ctl_fail("--step %" PRIu64 ": from position %" PRIu64
				" stream %s has %" PRIu64 " steps of %" PRIu64
				" samples; the last is step %" PRIu64,
			q->step, q->from, p->history->cursor.stream, steps, global, steps - 1);
	if (!p->json) {
		plan_measure(p, order_rank_position(
					q->from, q->step, q->world - 1, q->world, q->micro_batch));
		plan_put_head(&out, p);
	}
	for (uint64_t rank = first; rank <= last && good; rank++) {
		uint64_t at = order_rank_position(q->from, q->step, rank, q->world, q->micro_batch);

		for (uint64_t row = 0; row < q->micro_batch && good; row++) {
			struct plan_line line = {
				.rank = rank, .row = row, .padding = at >= end || row >= end - at};

			line.position = line.padding ? end : at + row;
			good = put_line(&out, p, &line);
		}
	}
	good = good && put_block(&out, p);
	return ctl_finish(&out, good ? CTL_OK : CTL_FAILED);
}

/* ---- the query ---- */

static int with_history(const struct ctl_stream *s, const struct ctl_history *h, struct query *q)
{
	struct plan p = {
		.history = h,
		.map = calloc(h->cursor.datasets, sizeof(const struct dataset *)),
		.window_tokens = h->cursor.seq_len + h->cursor.extra,
		.token_bytes = s->stream->token_bytes,
		.json = q->json,
		.ranks = q->ranks,
	};
	int status = CTL_FAILED;

	p.block = 1;
	if (q->tokens) {
		p.reader = ctl_windows_open(s);
		p.block = p.reader ? ctl_windows_block(p.reader) : 1;
		p.tokens = calloc(p.block * p.window_tokens, p.token_bytes);
	}
	p.lines = calloc(p.block, sizeof(*p.lines));
	p.windows = calloc(p.block, sizeof(*p.windows));
	/* Steps are counted from the position of the only cursor. */
	if (!q->has_from)
		q->from = q->cursor_count == 1 ? h->cursor.next : 0;
	if (!p.map || !p.lines || !p.windows || (q->tokens && (!p.reader || !p.tokens))) {
		ctl_fail(PHRASE_MEMORY);
	} else if (known(h, q->from)) {
		stream_map(s->stream, &h->cursor, p.map);
		if (q->cost)
			status = cost_report(
				h, p.map, q->from, q->cost_tokens, q->nodes, &q->prices, q->json);
		else
			status = q->ranks ? print_step(&p, q) : print_range(&p, q);
	}
	ctl_windows_close(p.reader);
	free(p.tokens);
	free(p.windows);
	free(p.lines);
	free(p.map);
	return status;
}

static int answer(struct query *q)
{
	struct ctl_stream s;
	struct ctl_history history;
	int status = CTL_FAILED;

	if (!(q->cost ? ctl_stream_open_all : ctl_stream_open)(&s, q->config, q->stream))
		return CTL_FAILED;
	if (ctl_history_open(&history, &s, q->cursors, q->cursor_count, q->run)) {
		status = with_history(&s, &history, q);
		ctl_history_close(&history);
	}
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

enum {
	CONFIG,
	FROM,
	COUNT,
	STEP,
	WORLD,
	MICRO,
	RANK,
	CURSOR,
	RUN,
	TOKENS,
	COST,
	FOR,
	NODES,
	RATE,
	GET,
	EGRESS,
	JSON
};

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_NEEDED,
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
	[COST] = {.name = "cost",
		.kind = CTL_FLAG,
		.help = "print what reading the stream from an object store costs, instead of "
			"positions"},
	[FOR] = {.name = "for",
		.kind = CTL_DECIMAL,
		.value = "TOKENS",
		.low = 1,
		.high = 1e18,
		.preset = "1e12",
		.help = "number of tokens to train on, for --cost; a finite stream ends before"},
	[NODES] = {.name = "nodes",
		.kind = CTL_NUMBER,
		.value = "N",
		.least = 1,
		.most = LIMIT_WORLD,
		.preset = "1",
		.help = "number of nodes, for --cost"},
	[RATE] = {.name = "rate",
		.kind = CTL_DECIMAL,
		.value = "TOKENS_PER_SECOND",
		.high = 1e15,
		.help = "tokens per second of the whole job, for --cost; default: unknown"},
	[GET] = {.name = "get",
		.kind = CTL_DECIMAL,
		.value = "DOLLARS",
		.high = 1e6,
		.preset = "0.0004",
		.help = "price of 1000 GETs, for --cost"},
	[EGRESS] = {.name = "egress",
		.kind = CTL_DECIMAL,
		.value = "DOLLARS",
		.high = 1e6,
		.preset = "0",
		.help = "price of a GB (10^9 bytes) that is read, for --cost"},
	[JSON] = CTL_JSON_OPTION,
};

/* Options of --cost, and options of the others. */
static int check_cost(const struct ctl_arguments *a)
{
	static const uint8_t of_cost[] = {FOR, NODES, RATE, GET, EGRESS},
			     of_others[] = {COUNT, STEP, WORLD, MICRO, RANK, TOKENS};
	bool cost = ctl_given(a, COST);
	const uint8_t *wrong = cost ? of_others : of_cost;
	size_t n = cost ? sizeof(of_others) : sizeof(of_cost);

	for (size_t i = 0; i < n; i++)
		if (ctl_given(a, wrong[i]))
			return ctl_usage(a->command,
				cost ? "--cost and --%s exclude each other" : "--%s needs --cost",
				a->command->options[wrong[i]].name);
	return CTL_OK;
}

/* Checks which options are given together. */
static int check_options(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	bool step = ctl_given(a, STEP), world = ctl_given(a, WORLD), micro = ctl_given(a, MICRO);

	if (a->arguments > 1 && !ctl_given(a, CURSOR))
		return ctl_usage(c, "unexpected argument '%s'", a->argument[1]);
	if (ctl_given(a, RUN) && ctl_given(a, CURSOR))
		return ctl_usage(c, "--run and --cursor exclude each other");
	if (check_cost(a) != CTL_OK)
		return CTL_USAGE;
	if (ctl_given(a, COST))
		return CTL_OK;
	if (!step && (world || micro || ctl_given(a, RANK)))
		return ctl_usage(c, "--world, --micro and --rank need --step");
	if (!step && (!ctl_given(a, FROM) || !ctl_given(a, COUNT)))
		return ctl_usage(
			c, "needs --from and --count, or --step, --world and --micro, or --cost");
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
		.json = ctl_given(a, JSON),
		.cost = ctl_given(a, COST),
		.cost_tokens = a->value[FOR].decimal,
		.nodes = ctl_number(a, NODES, 1),
		.prices = {.rate = a->value[RATE].decimal,
			.get = a->value[GET].decimal,
			.byte = a->value[EGRESS].decimal}};
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
		 "--cost computes from the config and the order what the stream costs in an object "
		 "store, also if its shards are still on a disk. One line per dataset and way of "
		 "reading it (window, piece; see the key fetch: in tokend.yaml(5)) has the number "
		 "of GETs, GETs per second at --rate, bytes read, bytes read per byte used, "
		 "dollars, and the cache that each node needs. GETs and bytes are sums over all "
		 "nodes. The sign * is after the way that the config chooses. Numbers after ~ are "
		 "estimates: of compressed shards and those of mds and "
		 "arrow, and of caches that are smaller than their dataset.\n\n"
		 "If the mix was changed while the run was going on, the config alone does not "
		 "give its order: add --run, or a cursor of the run with --cursor.",
	.examples = CTL_EXAMPLES(
		{"the first four samples", "tokctl plan train -c tokend.yaml --from 0 --count 4"},
		{"what 2 ranks with 4 rows each get at step 10",
			"tokctl plan train -c tokend.yaml --step 10 --world 2 --micro 4"},
		{"what 10^12 tokens on 16 nodes cost from a store",
			"tokctl plan train -c tokend.yaml --cost --nodes 16 --for 1e12"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = plan,
};
