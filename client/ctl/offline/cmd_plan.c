/*
 * tokctl plan: the window at each position, or the batch of each rank at a step. tokctl when: the
 * inverse, from tokens of a shard to the positions of the windows that contain them. The order is
 * computed by the daemon's code.
 */
#include "client/ctl/offline/offline.h"

#include <inttypes.h>

/* ---- rows ---- */

enum { TOKENS_SHOWN = 8 };

struct row {
	struct ctl_window window; /* of NULL: the row is after the end of a finite stream */
	uint64_t rank, row, position;
};

struct plan {
	const struct ctl_history *h;
	bool ranks;		    /* rows have a rank and a number */
	struct ctl_windows *reader; /* NULL: no --tokens */
	uint32_t token_bytes;
	struct emit e;
};

static void put_tokens(struct plan *p, const void *tokens)
{
	if (!tokens) {
		emit_json(&p->e, "tokens", "null");
		return;
	}
	emit_open(&p->e, "tokens", '[');
	for (uint64_t i = 0; i < p->h->cursor.seq_len + p->h->cursor.extra; i++) {
		uint32_t token = tokens_value(tokens, i, p->token_bytes);

		emit_number(&p->e, "", NULL, token);
		if (i < TOKENS_SHOWN)
			emit_more(&p->e, "  %" PRIu32, token);
	}
	emit_close(&p->e, ']');
}

/* @tokens: NULL, or those of the window. */
static void put_row(void *context, const void *item, const void *tokens)
{
	struct plan *p = context;
	const struct row *r = item;
	const struct order_place *place = &r->window.place;
	struct emit *e = &p->e;
	const char *name = NULL, *shard = NULL;
	uint64_t number = 0, offset = 0;
	char path[PATH_MAX + 1] = "";
	bool has = r->window.of;

	if (has) {
		const struct dataset *dataset = ctl_window_locate(&r->window, &number, &offset);

		name = p->h->cursor.dataset[place->dataset].name;
		shard = shard_list_name(&dataset->list, number);
		if (p->reader)
			shard_list_path(&dataset->list, number, path, sizeof(path));
	}
	if (p->ranks) {
		emit_number(e, "rank", "rank", r->rank);
		emit_number(e, "row", "row", r->row);
	}
	emit_optional(e, "position", "position", r->position, has);
	emit_text(e, "dataset", "dataset", name);
	emit_optional(e, "epoch", "epoch", place->epoch, has);
	emit_optional(e, "window", "window", place->window, has);
	emit_text(e, "shard", "shard", shard);
	emit_optional(e, "offset", "offset", offset, has);
	if (p->reader) {
		emit_text(e, "path", NULL, has ? path : NULL);
		put_tokens(p, tokens);
	}
	emit_row(e);
}

/* Prints @rows rows from @position on, those of @rank. False after an error was printed. */
static bool put_rows(struct plan *p, uint64_t position, uint64_t rows, uint64_t rank)
{
	uint64_t end = cursor_end(&p->h->cursor), left = position < end ? end - position : 0;
	bool done = true;

	for (uint64_t i = 0; i < rows && done && !p->e.error; i++) {
		struct row row = {.rank = rank, .row = i, .position = position + i};
		struct order_place *place = &row.window.place;

		if (i < left && order_at(&p->h->order, row.position, place))
			row.window.of = p->h;
		if (row.window.of && !p->h->map[place->dataset])
			done = ctl_error("position %" PRIu64
					 ": dataset %s is no longer in the config",
				row.position, p->h->cursor.dataset[place->dataset].name);
		else if (p->reader)
			done = ctl_windows_add(p->reader, &row);
		else
			put_row(p, &row, NULL);
	}
	return done;
}

/* ---- plan ---- */

static bool put_step(struct plan *p, const struct ctl_arguments *a, uint64_t from)
{
	uint64_t world = ctl_number(a, "world", 0), micro = ctl_number(a, "micro", 0),
		 step = ctl_number(a, "step", 0), global = world * micro,
		 end = cursor_end(&p->h->cursor),
		 steps = (end - from) / global + ((end - from) % global != 0),
		 first = ctl_number(a, "rank", 0), last = ctl_number(a, "rank", world - 1);

	if (step >= steps)
		ctl_fail("--step %" PRIu64 ": from position %" PRIu64 " on, stream %s has %" PRIu64
			 " steps of %" PRIu64 " samples, counted from 0",
			step, from, p->h->cursor.stream, steps, global);
	for (uint64_t rank = first; step < steps && rank <= last && !p->e.error; rank++)
		if (!put_rows(p, order_rank_position(from, step, rank, world, micro), micro, rank))
			return false;
	return step < steps;
}

static int answer_plan(
	const struct ctl_arguments *a, const struct ctl_stream *s, const struct ctl_history *h)
{
	/* Steps are counted from the position of the only cursor. */
	uint64_t from = ctl_number(a, "from", a->listed == 1 ? h->cursor.next : 0);
	struct plan p = {.h = h,
		.ranks = ctl_given(a, "step"),
		.token_bytes = s->stream->token_bytes,
		.e.json = ctl_given(a, "json")};
	bool good = ctl_history_has(h, from);

	if (good && ctl_given(a, "tokens"))
		good = (p.reader = ctl_windows_open(s, sizeof(struct row), put_row, &p));
	if (good)
		good = p.ranks ? put_step(&p, a, from)
			       : put_rows(&p, from,
					 MIN(ctl_number(a, "count", 0),
						 cursor_end(&h->cursor) - from),
					 0);
	if (p.reader) /* the rows before an error are printed */
		good = ctl_windows_flush(p.reader) && good;
	return emit_end(&p.e, good ? CTL_OK : CTL_FAILED);
}

static int plan(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	bool step = ctl_given(a, "step"), world = ctl_given(a, "world"),
	     micro = ctl_given(a, "micro");

	if (step ? ctl_given(a, "count") || !world || !micro
		 : world || micro || ctl_given(a, "rank") || !ctl_given(a, "from") ||
				!ctl_given(a, "count"))
		return ctl_usage(c,
			"needs --from and --count, or --step, --world and --micro; --rank needs "
			"--step");
	if (step && !ctl_given(a, "from") && a->listed > 1)
		return ctl_usage(
			c, "--step with several cursors needs --from, the position of step 0");
	if (ctl_given(a, "rank") && ctl_number(a, "rank", 0) >= ctl_number(a, "world", 0))
		return ctl_usage(c, "--rank %s: must be below the world, %s", ctl_text(a, "rank"),
			ctl_text(a, "world"));
	return ctl_with_history(a, false, answer_plan);
}

static const struct ctl_option plan_options[] = {
	CTL_HISTORY,
	{OPTION_NUMBER("from", "POSITION", 0, UINT64_MAX,
		"first position to print; with --step, that of step 0, where this world began; "
		"default: that of a single --cursor, otherwise 0")},
	{OPTION_NUMBER(
		"count", "N", 0, UINT64_MAX, "number of positions to print, without --step")},
	{OPTION_NUMBER("step", "N", 0, UINT64_MAX,
		"print the batch of each rank at this step, counted from 0, instead of a range")},
	{OPTION_NUMBER("world", "W", 1, LIMIT_WORLD, "number of ranks, for --step")},
	{OPTION_NUMBER("micro", "B", 1, LIMIT_MICRO_BATCH, "rows per batch, for --step")},
	{OPTION_NUMBER("rank", "R", 0, LIMIT_WORLD - 1, "print only this rank, for --step")},
	{OPTION_FLAG("tokens", "print the tokens too: the first 8, or all with --json")},
	{CTL_JSON_OPTION},
};

const struct ctl_command ctl_plan = {
	.name = "plan",
	.head = "The order of a stream:",
	.arguments = "STREAM",
	.help = "print which windows a stream serves at given positions, or to each rank at a step",
	OPTIONS_ARE(plan_options),
	.run = plan,
};

/* ---- when ---- */

/* Windows [first, first + count) of the cursor's dataset @d. */
static int put_windows(const struct ctl_history *h, const struct ctl_arguments *a, uint32_t d,
	uint64_t first, uint64_t count)
{
	struct emit e = {.json = ctl_given(a, "json")};
	const struct cursor_dataset *dataset = &h->cursor.dataset[d];
	struct order_place place = {.dataset = d, .epoch = ctl_number(a, "epoch", 0)};
	char part[ORDER_PART_BYTES];
	uint64_t position;
	bool served = false, in_part = false;

	for (place.window = first; place.window < first + count && !e.error; place.window++) {
		if (!order_when(&h->order, &place, &position)) {
			in_part |= order_unwindow(&h->order.dataset[d], h->order.seed, place.epoch,
					   place.window) != UINT64_MAX;
			continue;
		}
		emit_number(&e, "position", "position", position);
		emit_number(&e, "epoch", "epoch", place.epoch);
		emit_number(&e, "window", "window", place.window);
		emit_row(&e);
		served = true;
	}
	if (served)
		return emit_end(&e, CTL_OK);
	if (!in_part)
		return ctl_fail("never served here: window %" PRIu64
				" is not in part %s of the path, which dataset %s has",
			first, order_part_text(dataset->lo, dataset->hi, part), dataset->name);
	if (h->order.segment[0]->start > 0)
		return ctl_fail(
			"never served from position %" PRIu64
			" on; the mixes before it are unknown: add a --cursor saved earlier",
			h->order.segment[0]->start);
	return ctl_fail("never served: dataset %s does not reach epoch %" PRIu64
			" of these windows",
		dataset->name, place.epoch);
}

static int answer_when(
	const struct ctl_arguments *a, const struct ctl_stream *s, const struct ctl_history *h)
{
	const char *name = ctl_text(a, "dataset"), *file = ctl_text(a, "shard");
	uint64_t offset = ctl_number(a, "offset", 0), some = ctl_number(a, "tokens", 1),
		 epoch = ctl_number(a, "epoch", 0), first, count;
	int d = cursor_find(&h->cursor, name), begin = cursor_find(&s->stream->begin, name);
	char list[NEAREST_LIST_BYTES];

	if (begin < 0)
		return ctl_fail("--dataset %s: not a dataset of stream %s; must be one of: %s",
			name, a->argument[0], cursor_list_datasets(&s->stream->begin, name, list));
	if (d < 0)
		return ctl_fail("never served: the cursor has no dataset %s", name);
	const struct dataset *dataset = &s->stream->dataset[begin];
	int64_t shard = shard_list_find(&dataset->list, file);

	if (shard < 0)
		return ctl_fail(
			"--shard %s: no such shard in dataset %s; give a path relative to %s", file,
			name, dataset->list.root);
	uint64_t tokens = dataset->table.tokens[shard];

	if (offset >= tokens || some > tokens - offset)
		return ctl_fail("--offset %" PRIu64 ", --tokens %" PRIu64 ": %s has only %" PRIu64
				" tokens",
			offset, some, file, tokens);
	table_touching(&dataset->table, &h->cursor.order[d], h->cursor.seed, epoch, (uint64_t)shard,
		offset, some, &first, &count);
	if (count == 0)
		return ctl_fail("never served: no window of epoch %" PRIu64
				" contains any of the %" PRIu64 " tokens of %s from %" PRIu64 " on",
			epoch, some, file, offset);
	return put_windows(h, a, (uint32_t)d, first, count);
}

static int when(const struct ctl_arguments *a)
{
	return ctl_with_history(a, false, answer_when);
}

static const struct ctl_option when_options[] = {
	CTL_HISTORY,
	{OPTION_TEXT("dataset", "NAME", "dataset of the shard"), .required = true},
	{OPTION_TEXT("shard", "PATH", "shard, as a path relative to the dataset's directory"),
		.required = true},
	{OPTION_NUMBER(
		 "offset", "TOKEN", 0, UINT64_MAX, "first token, counted from 0 in the shard"),
		.required = true},
	{OPTION_NUMBER("tokens", "N", 1, UINT64_MAX, "number of tokens"), .preset = "1"},
	{OPTION_NUMBER("epoch", "E", 0, UINT64_MAX, "the epoch of the dataset to look in"),
		.preset = "0"},
	{CTL_JSON_OPTION},
};

const struct ctl_command ctl_when = {
	.name = "when",
	.arguments = "STREAM",
	.help = "print the positions at which tokens of a shard are served",
	OPTIONS_ARE(when_options),
	.run = when,
};
