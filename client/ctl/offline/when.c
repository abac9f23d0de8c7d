/*
 * tokctl when: inverts the order, from tokens of a shard to the positions of the windows that
 * contain them.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/windows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the query ---- */

struct query {
	const char *config, *stream, *run;
	const char *dataset, *shard;
	uint64_t offset, tokens, epoch;
	bool json;
};

static void print(struct ctl_out *out, const struct query *q, uint64_t position, uint64_t window)
{
	if (q->json) {
		ctl_put(out, "{");
		ctl_put_pair(out, "position", position);
		ctl_put(out, ",");
		ctl_put_pair(out, "epoch", q->epoch);
		ctl_put(out, ",");
		ctl_put_pair(out, "window", window);
		ctl_put(out, "}\n");
		return;
	}
	ctl_put(out, "position ");
	ctl_put_number(out, position);
	ctl_put(out, "  epoch ");
	ctl_put_number(out, q->epoch);
	ctl_put(out, "  window ");
	ctl_put_number(out, window);
	ctl_put(out, "\n");
}

/* Has the dataset's part any of these windows of its path? */
static bool any_in_part(
	const struct ctl_history *h, const struct query *q, int d, uint64_t first, uint64_t count)
{
	const struct order_dataset *of = &h->order.dataset[d];

	for (uint64_t w = first; w < first + count; w++)
		if (order_unwindow(of, h->order.seed, q->epoch, w) != UINT64_MAX)
			return true;
	return false;
}

/* Windows [first, first + count) of the cursor's dataset @d. */
static int print_windows(
	const struct ctl_history *h, const struct query *q, int d, uint64_t first, uint64_t count)
{
	struct ctl_out out = {0};
	uint64_t served = 0;
	char part[ORDER_PART_BYTES];

	for (uint64_t w = first; w < first + count && !out.failed; w++) {
		struct order_place place = {(uint32_t)d, q->epoch, w};
		uint64_t position;

		if (!order_when(&h->order, &place, &position))
			continue;
		print(&out, q, position, w);
		served++;
	}
	if (served > 0 || out.failed)
		return ctl_finish(&out, CTL_OK);
	if (!any_in_part(h, q, d, first, count))
		return ctl_fail("never served here: window %" PRIu64
				" is not in part %s of the path, which dataset %s has",
			first,
			order_part_text(h->cursor.dataset[d].lo, h->cursor.dataset[d].hi, part),
			q->dataset);
	if (h->order.segment[0]->start > 0)
		return ctl_fail(
			"never served from position %" PRIu64
			" on; the mixes before it are unknown: add a --cursor saved earlier",
			h->order.segment[0]->start);
	return ctl_fail("never served: dataset %s does not reach epoch %" PRIu64
			" of these windows",
		q->dataset, q->epoch);
}

static int answer(const struct stream *stream, const struct ctl_history *h, const struct query *q)
{
	int d = cursor_find(&h->cursor, q->dataset);
	const struct dataset *dataset = NULL;
	char list[NEAREST_LIST_BYTES];

	for (uint32_t i = 0; i < stream->config->datasets; i++)
		if (strcmp(stream->dataset[i].config->name, q->dataset) == 0)
			dataset = &stream->dataset[i];
	if (!dataset)
		return ctl_fail("--dataset %s: not a dataset of stream %s; must be one of: %s",
			q->dataset, stream->config->name,
			cursor_list_datasets(&stream->begin, q->dataset, list));
	if (d < 0)
		return ctl_fail("never served: the cursor has no dataset %s", q->dataset);
	int64_t shard = dataset_find_shard(dataset, q->shard);

	if (shard < 0)
		return ctl_fail(
			"--shard %s: no such shard in dataset %s; give a path relative to %s",
			q->shard, q->dataset, dataset->root);
	uint64_t tokens = dataset->table.tokens[shard], first, count;

	if (q->offset >= tokens)
		return ctl_fail("--offset %" PRIu64 ": %s has only %" PRIu64 " tokens", q->offset,
			q->shard, tokens);
	if (q->tokens > tokens - q->offset)
		return ctl_fail("--tokens %" PRIu64 ": from offset %" PRIu64
				" on, %s has only %" PRIu64,
			q->tokens, q->offset, q->shard, tokens - q->offset);
	table_touching(&dataset->table, &h->cursor.order[d], h->cursor.seed, q->epoch,
		(uint64_t)shard, q->offset, q->tokens, &first, &count);
	if (count == 0 && q->tokens == 1)
		return ctl_fail("never served: no window of epoch %" PRIu64
				" contains token %" PRIu64 " of %s",
			q->epoch, q->offset, q->shard);
	if (count == 0)
		return ctl_fail("never served: no window of epoch %" PRIu64
				" contains any of the %" PRIu64 " tokens of %s from %" PRIu64 " on",
			q->epoch, q->tokens, q->shard, q->offset);
	return print_windows(h, q, d, first, count);
}

static int with_history(const struct query *q, const char *const *cursors, unsigned n)
{
	struct ctl_stream s;
	struct ctl_history history;
	int status = CTL_FAILED;

	if (!ctl_stream_open(&s, q->config, q->stream))
		return CTL_FAILED;
	if (ctl_history_open(&history, &s, cursors, n, q->run)) {
		status = answer(s.stream, &history, q);
		ctl_history_close(&history);
	}
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, DATASET, SHARD, OFFSET, TOKENS, EPOCH, CURSOR, RUN, JSON };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_NEEDED,
	[DATASET] = {.name = "dataset",
		.required = true,
		.value = "NAME",
		.help = "dataset of the shard"},
	[SHARD] = {.name = "shard",
		.required = true,
		.value = "PATH",
		.help = "shard, as a path relative to the dataset's directory"},
	[OFFSET] = {.name = "offset",
		.kind = CTL_NUMBER,
		.required = true,
		.value = "TOKEN",
		.most = UINT64_MAX,
		.help = "first token, counted from 0 in the shard"},
	[TOKENS] = {.name = "tokens",
		.kind = CTL_NUMBER,
		.value = "N",
		.least = 1,
		.most = UINT64_MAX,
		.preset = "1",
		.help = "number of tokens"},
	[EPOCH] = {.name = "epoch",
		.kind = CTL_NUMBER,
		.value = "E",
		.most = UINT64_MAX,
		.preset = "0",
		.help = "epoch of the dataset in which they are served"},
	[CURSOR] = CTL_HISTORY_CURSOR,
	[RUN] = CTL_HISTORY_RUN,
	[JSON] = CTL_JSON_OPTION,
};

static int when(const struct ctl_arguments *a)
{
	struct query q = {.config = ctl_text(a, CONFIG),
		.stream = a->argument[0],
		.run = ctl_text(a, RUN),
		.dataset = ctl_text(a, DATASET),
		.shard = ctl_text(a, SHARD),
		.offset = ctl_number(a, OFFSET, 0),
		.tokens = ctl_number(a, TOKENS, 1),
		.epoch = ctl_number(a, EPOCH, 0),
		.json = ctl_given(a, JSON)};
	unsigned count;

	if (a->arguments > 1 && !ctl_given(a, CURSOR))
		return ctl_usage(a->command, "unexpected argument '%s'", a->argument[1]);
	if (ctl_given(a, RUN) && ctl_given(a, CURSOR))
		return ctl_usage(a->command, "--run and --cursor exclude each other");
	const char **cursors = ctl_list(a, CURSOR, 1, &count);

	return with_history(&q, cursors, count);
}

const struct ctl_command ctl_when = {
	.name = "when",
	.arguments = "STREAM",
	.least = 1,
	.most = CTL_ANY, /* "--cursor A B": the shell's way of giving several */
	.help = "print the positions at which tokens of a shard are served",
	.about = "Finds the windows that contain the given tokens, and the position of each in one "
		 "epoch of the dataset. So it answers whether, and at which step, a document was "
		 "trained on. The exit status is 1 if the tokens are never served.\n\n"
		 "If the mix was changed while the run was going on, add --run, or a cursor of the "
		 "run with --cursor.",
	.examples = CTL_EXAMPLES({"when token 2000 of a shard is served",
		"tokctl when train -c tokend.yaml --dataset web --shard 0000.bin --offset 2000"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = when,
};
