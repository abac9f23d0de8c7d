/*
 * tokctl verify: compares the rows that trainers recorded with the order. Over a range of positions
 * all ranks together must have taken each position exactly once, with the tokens of the shards.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/proof.h"
#include "client/ctl/offline/proof_range.h"
#include "client/ctl/offline/proof_report.h"
#include "client/ctl/offline/proof_verdict.h"
#include "client/ctl/offline/records.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct query {
	const char *config, *stream, *run;
	const char **cursors;
	char **paths; /* of records */
	unsigned cursor_count, path_count;
	struct proof_range range;
	bool json;
};

/* ---- the proof ---- */

static int prove_peer(struct proof *p, const struct query *q)
{
	bool done = proof_run(p);
	struct ctl_out out = {0};
	int status = CTL_FAILED;

	if (done && q->json)
		done = proof_put_json(&out, p);
	else if (done)
		done = proof_put_text(&out, p);
	if (done)
		status = ctl_finish(&out, proof_findings(p) > 0 ? CTL_FAILED : CTL_OK);
	proof_free(p);
	return status;
}

static int with_records(const struct query *q, const struct records *r)
{
	int status = CTL_OK;

	for (size_t i = 0; i < r->peers; i++) {
		struct proof_range range = q->range;

		if (!proof_range_reached(&range, r, r->peer[i].pass))
			continue;
		if (!proof_range_set(&range, r, &r->peer[i]))
			return CTL_FAILED;

		struct proof p = {
			.records = r, .peer = &r->peer[i], .from = range.from, .to = range.to};

		if (prove_peer(&p, q) != CTL_OK)
			status = CTL_FAILED;
	}
	return status;
}

static int answer(struct query *q)
{
	struct ctl_history history = {0};
	struct records records = {0};
	struct ctl_stream s;
	int status = CTL_FAILED;
	bool given = q->run || q->cursor_count > 0,
	     good = ctl_stream_open(&s, q->config, q->stream);

	if (!good)
		return CTL_FAILED;
	for (unsigned i = 0; good && i < q->path_count; i++)
		good = records_add(&records, q->paths[i]);
	if (good && given)
		good = ctl_history_open(&history, &s, q->cursors, q->cursor_count, q->run);
	if (good && records_read(&records, &s, given ? &history.cursor : NULL))
		status = with_records(q, &records);
	records_free(&records);
	ctl_history_close(&history);
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, FROM, TO, CURSOR, RUN, JSON };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_NEEDED,
	[FROM] = {.name = "from",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX,
		.help = "first position of the range; default: the first recorded"},
	[TO] = {.name = "to",
		.kind = CTL_NUMBER,
		.value = "POSITION",
		.most = UINT64_MAX,
		.help = "end of the range, not included; default: the end of the records"},
	[CURSOR] = {.name = "cursor",
		.kind = CTL_LIST,
		.value = "FILE",
		.help = "cursor that counts for all rows; default: those in the records"},
	[RUN] = {.name = "run",
		.value = "RUN",
		.help = "run, or a cursor's file: its last cursor in state_dir counts for all "
			"rows"},
	[JSON] = CTL_JSON_OPTION,
};

static bool is_cursor(const char *path)
{
	size_t length = strlen(path);

	return length > 7 && strcmp(path + length - 7, ".cursor") == 0;
}

static int verify(const struct ctl_arguments *a)
{
	struct query q = {.config = ctl_text(a, CONFIG),
		.stream = a->argument[0],
		.run = ctl_text(a, RUN),
		.cursors = a->value[CURSOR].list,
		.cursor_count = a->value[CURSOR].count,
		.paths = a->argument + 1,
		.json = ctl_given(a, JSON),
		.range = {.has_from = ctl_given(a, FROM),
			.has_to = ctl_given(a, TO),
			.from = ctl_number(a, FROM, 0),
			.to = ctl_number(a, TO, 0)}};

	if (q.run && q.cursor_count > 0)
		return ctl_usage(a->command, "--run and --cursor exclude each other");
	/* "--cursor *.cursor" may expand to several files. */
	for (int i = 1; i < a->arguments; i++)
		if (q.cursor_count > 0 && is_cursor(a->argument[i]))
			q.cursors[q.cursor_count++] = a->argument[i];
		else
			q.paths[q.path_count++] = a->argument[i];
	return q.path_count > 0 ? answer(&q) : ctl_usage(a->command, "needs STREAM RECORD...");
}

const struct ctl_command ctl_verify = {
	.name = "verify",
	.arguments = "STREAM RECORD...",
	.least = 2,
	.most = CTL_ANY,
	.help = "prove from trainers' records that no sample was repeated, lost or altered",
	.about = "Compares the records that trainers write (Loader's record=, or tokctl cat "
		 "--record) with the order and with the shards. Over a range of positions, all "
		 "ranks together must have taken each position exactly once, with the tokens that "
		 "the shards contain. RECORD is a file, or a directory with *.record files; give "
		 "the records of all ranks and of all restarts.\n\n"
		 "A batch counts when it is taken, or, if the trainer calls commit(), when it is "
		 "committed. If a restart from an older checkpoint repeats rows, the earlier ones "
		 "are void. The exit status is 1 if any position was repeated, lost or altered."
		 "\n\n"
		 "Printed are a verdict, with the probable cause of what is wrong, and: samples, "
		 "the positions in the range that were taken; skipped, those "
		 "that `tokctl skip` left out; void, rows undone by restarts; outside, rows "
		 "outside the range; generations, the number of stretches with one world and "
		 "micro_batch; and sum, which is equal for all runs over the same samples.\n\n"
		 "Each row is compared with the order of the cursor that its record has. "
		 "--cursor or --run takes another one for all rows.",
	.examples = CTL_EXAMPLES({"prove a run from the records of all its ranks",
		"tokctl verify train records -c tokend.yaml"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = verify,
};
