/*
 * tokctl verify: compares the rows that trainers recorded with the order. Over a range of positions
 * all ranks together must have taken each position exactly once, with the tokens of the shards.
 */
#include "client/ctl/offline/offline.h"
#include "daemon/shard/bytes.h"

#include <inttypes.h>
#include <unistd.h>

enum { CONFIG, FROM, TO, CURSOR, RUN, JSON };

/* ---- the range of positions that a proof is about ---- */

/* Where @pass begins, and ends with its last row. */
static struct stretch recorded(const struct records *r, uint64_t pass)
{
	struct stretch whole = {.from = UINT64_MAX};

	for (size_t i = 0; i < r->sections; i++) {
		const struct record_section *s = &r->section[i];

		if (s->pass == pass && s->begin.position < whole.from)
			whole.from = s->begin.position;
		if (s->pass == pass && s->last > whole.to)
			whole.to = s->last;
	}
	return whole;
}

/* Sets the proof's range from --from and --to, or from what was @recorded. The last of several
 * passes may still be going on, so its range ends at its last row. False after an error. */
static bool set_range(
	struct proof *p, const struct ctl_arguments *a, const struct stretch *recorded)
{
	const struct records *r = p->records;
	const struct order *oldest = &r->order[p->peer->force[0].order].order;
	uint64_t end = oldest->end ? oldest->end : UINT64_MAX, first = oldest->segment[0]->start;
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	p->from = ctl_number(a, FROM, recorded->from);
	p->to = ctl_number(a, TO, recorded->to < end ? recorded->to : end);
	if (r->passes > 1 && p->peer->pass + 1 == r->passes && recorded->to > p->from &&
		recorded->to < p->to)
		p->to = recorded->to;
	if (p->to > end)
		ctl_fail("--to %" PRIu64 ": the stream ends at position %" PRIu64, p->to, end);
	else if (p->to <= p->from)
		ctl_fail("the range from position %" PRIu64 " to %" PRIu64
			 " is empty; give --to above --from, or what was recorded",
			p->from, p->to);
	else if (p->from < first)
		ctl_fail("the range begins at position %" PRIu64 ", but the mixes before %" PRIu64
			 " are unknown; give --from, or a cursor saved earlier with --cursor",
			p->from, first);
	else if ((p->to - p->from) / 8 > memory)
		ctl_fail("positions %" PRIu64 " to %" PRIu64
			 " need more memory than there is, a bit each; give --from and --to",
			p->from, p->to);
	else
		return true;
	return false;
}

/* ---- the proof ---- */

static int prove(const struct ctl_arguments *a, const struct records *r)
{
	struct emit e = {.json = ctl_given(a, JSON)};
	int status = CTL_OK;
	bool done = true;

	for (size_t i = 0; i < r->peers && done; i++) {
		const struct stretch whole = recorded(r, r->peer[i].pass);
		struct proof p = {.records = r, .peer = &r->peer[i]};

		if (r->passes > 1 && ctl_given(a, FROM) && whole.to <= ctl_number(a, FROM, 0))
			continue; /* this pass did not reach --from */
		done = set_range(&p, a, &whole) && proof_run(&p);
		if (done)
			proof_put(&e, &p);
		if (!done || proof_findings(&p) > 0)
			status = CTL_FAILED;
		proof_free(&p);
	}
	return emit_end(&e, status);
}

static int verify(const struct ctl_arguments *a)
{
	const char *run = ctl_text(a, RUN);
	unsigned cursors = a->listed;
	struct ctl_history history = {0};
	struct records records = {0};
	struct ctl_stream s;
	int status = CTL_FAILED;
	bool given = run || a->listed > 0, good = true;

	if (run && a->listed > 0)
		return ctl_usage(a->command, "--run and --cursor exclude each other");
	if (!ctl_stream_open(&s, ctl_text(a, CONFIG), a->argument[0]))
		return CTL_FAILED;
	for (int i = 1; i < a->arguments && good; i++)
		if (a->listed > 0 && bytes_ends_in(a->argument[i], ".cursor")) /* "*.cursor" */
			a->list[cursors++] = a->argument[i];
		else
			good = records_add(&records, a->argument[i]);
	if (good && records.files == 0)
		status = ctl_usage(a->command, "needs STREAM RECORD...");
	else if (good && (!given || ctl_history_open(&history, &s, a->list, cursors, run)) &&
		 records_read(&records, &s, given ? &history.cursor : NULL))
		status = prove(a, &records);
	records_free(&records);
	ctl_history_close(&history);
	ctl_stream_close(&s);
	return status;
}

static const struct ctl_option options[] = {
	[CONFIG] = {CTL_CONFIG_NEEDED},
	[FROM] = {OPTION_NUMBER("from", "POSITION", 0, UINT64_MAX,
		"first position of the range; default: the first recorded, which proves nothing of "
		"those before it")},
	[TO] = {OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX,
		"end of the range, not included; default: the end of the records")},
	[CURSOR] = {OPTION_LIST("cursor", "FILE",
		"cursor whose mixes count for all rows; default: those in the records")},
	[RUN] = {OPTION_TEXT("run", "RUN",
		"run whose last cursor in state_dir counts for all rows, or a cursor's file")},
	[JSON] = {CTL_JSON_OPTION},
};

const struct ctl_command ctl_verify = {
	.name = "verify",
	.head = "After a run:",
	.arguments = "STREAM RECORD...",
	.help = "prove from records (a Loader's record=) that no sample was repeated, lost or "
		"altered",
	.run = verify,
	OPTIONS_ARE(options),
};
