/*
 * tokctl verify: the proof after the fact. Over a range of positions the rows that trainers
 * recorded, all ranks together, must be exactly the order: each position once, with the tokens that
 * the shards have there.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/proof.h"
#include "client/ctl/offline/proof_report.h"
#include "client/ctl/offline/records.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct question {
	const char *config, *stream, *run;
	const char **cursors, **paths;
	unsigned cursor_count, path_count;
	bool json, has_from, has_to;
	uint64_t from, to;
};

/* ---- the range ---- */

static uint64_t least_begin(const struct records *r, uint64_t pass)
{
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < r->sections; i++)
		if (r->section[i].pass == pass && r->section[i].begin.position < least)
			least = r->section[i].begin.position;
	return least;
}

static uint64_t highest_row(const struct records *r, uint64_t pass)
{
	uint64_t last = 0;

	for (size_t i = 0; i < r->sections; i++)
		if (r->section[i].pass == pass && r->section[i].last > last)
			last = r->section[i].last;
	return last;
}

/* Fills in what was not asked for, and checks it. The last of several passes may still be under
 * way: it is asked only for what it came to. */
static bool set_range(
	struct question *q, const struct ctl_history *h, const struct records *r, uint64_t pass)
{
	uint64_t came_to = highest_row(r, pass);
	uint64_t end = h->order.end ? h->order.end : UINT64_MAX, first = h->order.segment[0]->start;
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (!q->has_from)
		q->from = least_begin(r, pass);
	if (!q->has_to) {
		q->to = came_to;
		if (q->to > end)
			q->to = end;
	}
	if (r->passes > 1 && pass + 1 == r->passes && came_to > q->from && came_to < q->to)
		q->to = came_to;
	if (q->to > end)
		ctl_fail("--to %" PRIu64 ": the stream ends at position %" PRIu64, q->to, end);
	else if (!q->has_to && q->to <= q->from)
		ctl_fail("no row from position %" PRIu64 " on was recorded", q->from);
	else if (q->to <= q->from)
		ctl_fail("--to %" PRIu64 ": must be above --from, %" PRIu64, q->to, q->from);
	else if (q->from < first)
		ctl_fail("the earliest mix that is known begins at position %" PRIu64
			 ", after %" PRIu64 "; give --cursor or --run that reach back, or --from",
			first, q->from);
	else if ((q->to - q->from) / 8 > memory)
		ctl_fail("positions %" PRIu64 " to %" PRIu64
			 " take a bit of memory each, more than there is: give --from and --to",
			q->from, q->to);
	else
		return true;
	return false;
}

/* ---- the proof ---- */

static uint64_t findings(const struct proof *p)
{
	return p->found[REPEATED] + p->found[LOST] + p->found[ALTERED];
}

static int prove_peer(struct proof *p, const struct question *q)
{
	struct ctl_out out = {0};
	int status = CTL_FAILED;

	if (proof_run(p)) {
		if (q->json)
			proof_put_json(&out, p);
		else
			proof_put_text(&out, p);
		status = ctl_finish(&out, findings(p) > 0 ? CTL_FAILED : CTL_OK);
		if (!q->json)
			proof_hint(p, q->run || q->cursor_count > 0);
	}
	proof_free(p);
	return status;
}

static int with_records(const struct question *q, const struct ctl_stream *s,
	const struct ctl_history *h, const struct records *r)
{
	int status = CTL_OK;

	for (size_t i = 0; i < r->peers; i++) {
		struct question range = *q;

		if (r->passes > 1 && q->has_from && highest_row(r, r->peer[i].pass) <= q->from)
			continue; /* this pass did not come there */
		if (!set_range(&range, h, r, r->peer[i].pass))
			return CTL_FAILED;

		struct proof p = {.s = s,
			.history = h,
			.records = r,
			.peer = &r->peer[i],
			.from = range.from,
			.to = range.to};

		if (prove_peer(&p, q) != CTL_OK)
			status = CTL_FAILED;
	}
	return status;
}

static int answer(struct question *q)
{
	struct ctl_history history = {0};
	struct records records = {0};
	struct ctl_stream s;
	int status = CTL_FAILED;
	bool good = ctl_stream_open(&s, q->config, q->stream);

	if (!good)
		return CTL_FAILED;
	good = ctl_history_open(&history, &s, q->cursors, q->cursor_count, q->run);
	for (unsigned i = 0; good && i < q->path_count; i++)
		good = records_add(&records, q->paths[i]);
	if (good && records_read(&records, record_identity(&s.stream->begin), q->stream))
		status = with_records(q, &s, &history, &records);
	records_free(&records);
	ctl_history_close(&history);
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

static bool number(const char *name, const char *text, bool *given, uint64_t *to)
{
	*given = text != NULL;
	if (!text || ctl_number(text, to))
		return true;
	ctl_usage("verify", "--%s %s: must be a whole number", name, text);
	return false;
}

static int verify(int argc, char **argv, const char **cursors, const char **paths)
{
	struct question q = {.cursors = cursors, .paths = paths};
	const char *from = NULL, *to = NULL;
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &q.config},
		{.name = "from", .value = &from},
		{.name = "to", .value = &to},
		{.name = "cursor", .list = cursors, .count = &q.cursor_count},
		{.name = "run", .value = &q.run},
		{.name = "json", .flag = &q.json},
	};
	int n = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0]));

	if (n < 0)
		return CTL_USAGE;
	if (n < 2 || !q.config)
		return ctl_usage("verify", "needs -c FILE, one STREAM and its records");
	if (q.run && q.cursor_count > 0)
		return ctl_usage("verify", "--run and --cursor exclude each other");
	q.stream = argv[1];
	/* "--cursor A B": the shell's way of giving several. */
	for (int i = 2; i <= n; i++) {
		size_t length = strlen(argv[i]);

		if (q.cursor_count > 0 && length > 7 &&
			strcmp(argv[i] + length - 7, ".cursor") == 0)
			cursors[q.cursor_count++] = argv[i];
		else
			paths[q.path_count++] = argv[i];
	}
	if (q.path_count == 0)
		return ctl_usage("verify",
			"needs the records of the trainers: files, or directories of them");
	if (!number("from", from, &q.has_from, &q.from) || !number("to", to, &q.has_to, &q.to))
		return CTL_USAGE;
	return answer(&q);
}

int ctl_verify(int argc, char **argv)
{
	const char **lists = calloc(2 * (size_t)argc, sizeof(*lists));
	int status = lists ? verify(argc, argv, lists, lists + argc) : ctl_fail("out of memory");

	free(lists);
	return status;
}
