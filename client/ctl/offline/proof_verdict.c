/* The probable cause of what is wrong with a run. */
#include "client/ctl/offline/offline.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct proof_source proof_source(const struct proof *p, uint64_t position)
{
	const struct record_order *o =
		&p->records->order[records_in_force(p->peer, position)->order];
	struct proof_source source = {0};
	struct order_place place;
	uint64_t shard;

	if (!order_at(&o->order, position, &place))
		return source;

	const struct dataset *dataset = o->map[place.dataset];

	source.dataset = o->cursor.dataset[place.dataset].name;
	if (!dataset)
		return source;
	table_locate(&dataset->table, &o->cursor.order[place.dataset], o->cursor.seed, place.epoch,
		place.window, &shard, &source.offset);
	source.shard = dataset_shard_name(dataset, shard);
	return source;
}

const struct record_generation *proof_generation(const struct proof *p, uint64_t position)
{
	for (size_t g = p->peer->generations; g-- > 0;)
		if (p->peer->generation[g].position <= position)
			return &p->peer->generation[g];
	return NULL;
}

uint64_t proof_rank(const struct record_generation *g, uint64_t position)
{
	return (position - g->position) / g->micro_batch % g->world;
}

/* After the last position that counts of @rank of generation @g; 0: none. *@any: it has records. */
static uint64_t last_of(
	const struct proof *p, const struct record_generation *g, uint64_t rank, bool *any)
{
	uint64_t last = 0;

	*any = false;
	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];

		if (&p->peer->generation[s->generation] != g || s->begin.rank != rank)
			continue;
		*any = true;
		last = s->last > last ? s->last : last;
	}
	return last;
}

uint64_t proof_whole_to(const struct proof *p)
{
	if (p->found[LOST] == 0 || p->peer->generations == 0)
		return 0;

	uint64_t first = p->finding[LOST][0].position;
	const struct record_generation *g = &p->peer->generation[p->peer->generations - 1];
	bool any;

	if (first < g->position || last_of(p, g, proof_rank(g, first), &any) > first)
		return 0;
	return first - (first - g->position) % (g->world * g->micro_batch);
}

uint64_t proof_findings(const struct proof *p)
{
	return p->found[REPEATED] + p->found[LOST] + p->found[ALTERED];
}

/* ---- probable causes ---- */

/* Why, and what to do. */
struct cause {
	char why[600], do_this[200];
};

__attribute__((format(printf, 2, 3))) static bool because(struct cause *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(c->why, sizeof(c->why), format, args);
	va_end(args);
	return true;
}

static const char *path_of(const struct proof *p, const struct finding *f)
{
	return p->records->file[f->file].path;
}

/* The file of all findings of @kind; NULL if there are several, or if not all were kept. */
static const char *only_file(const struct proof *p, enum finding_kind kind)
{
	for (unsigned i = 1; i < p->shown[kind]; i++)
		if (p->finding[kind][i].file != p->finding[kind][0].file)
			return NULL;
	return path_of(p, &p->finding[kind][0]);
}

/* Only clocks tell which of two restarts was first. */
static bool clock_was_set(const struct proof *p, struct cause *c)
{
	if (!p->peer->rewound)
		return false;
	snprintf(c->do_this, sizeof(c->do_this),
		"if the clock was set back, verify the records before and after that moment "
		"separately");
	return because(c,
		"%s begins after %s by its clock, but at an earlier position, so rows of that file "
		"are void",
		p->records->file[p->peer->rewinding].path, p->records->file[p->peer->voided].path);
}

static bool rank_is_missing(const struct proof *p, struct cause *c)
{
	const struct record_generation *g;
	uint64_t first, rank, whole = proof_whole_to(p);
	bool any;

	if (p->found[LOST] == 0)
		return false;
	first = p->finding[LOST][0].position;
	g = proof_generation(p, first);
	if (!g)
		return false;
	rank = proof_rank(g, first);
	last_of(p, g, rank, &any);
	if (!any) {
		snprintf(c->do_this, sizeof(c->do_this), "give the records of all ranks%s",
			whole > p->from ? "" : " and nodes");
		return because(c,
			"no record of rank %" PRIu64 " of %" PRIu64 " from position %" PRIu64
			" on was given",
			rank, g->world, g->position);
	}
	if (whole <= p->from)
		return false;
	snprintf(c->do_this, sizeof(c->do_this),
		"if the run was stopped there, add --to %" PRIu64
		" to end the range at the last complete step",
		whole);
	return because(c,
		"rank %" PRIu64 " of %" PRIu64 " recorded nothing from position %" PRIu64 " on",
		rank, g->world, first);
}

/* True if the altered rows that were kept are all of one shard. */
static bool one_shard(const struct proof *p, struct proof_source *source)
{
	*source = proof_source(p, p->finding[ALTERED][0].position);
	for (unsigned i = 1; i < p->shown[ALTERED] && source->shard; i++) {
		struct proof_source other = proof_source(p, p->finding[ALTERED][i].position);

		if (!other.shard || strcmp(other.shard, source->shard) != 0 ||
			strcmp(other.dataset, source->dataset) != 0)
			return false;
	}
	return source->shard && p->found[ALTERED] > 1;
}

static bool orders_differ(const struct proof *p, struct cause *c)
{
	if (!p->files[0])
		return false;
	snprintf(c->do_this, sizeof(c->do_this),
		"all ranks must load the same checkpoint, and carry out each request at one step");
	return because(c,
		"%s and %s were served different mixes: position %" PRIu64
		" has other samples in them",
		p->files[0], p->files[1], p->differ_at);
}

static bool tokens_differ(const struct proof *p, struct cause *c)
{
	struct proof_source source;

	if (p->found[ALTERED] == 0)
		return false;

	const struct finding *first = &p->finding[ALTERED][0];
	const char *file = only_file(p, ALTERED);

	source = proof_source(p, first->position);
	if (!source.dataset)
		return because(c, "%s has rows past the end of the stream", path_of(p, first));
	if (one_shard(p, &source)) {
		snprintf(c->do_this, sizeof(c->do_this), "restore that shard");
		return because(c, "shard %s of dataset %s is not what the run was served",
			source.shard, source.dataset);
	}
	if (file && p->found[ALTERED] > 1)
		return because(c, "%s has other tokens: another mix, or other shards", file);
	return because(c, "tokens in %s are not those of the shards", path_of(p, first));
}

static bool taken_twice(const struct proof *p, struct cause *c)
{
	if (p->found[REPEATED] == 0)
		return false;

	const char *file = only_file(p, REPEATED);

	if (file)
		return because(c, "%s has rows that were taken before", file);
	return because(c, "two processes took the same rows: a job that ran twice, or a restart "
			  "without its checkpoint");
}

static void find_cause(const struct proof *p, struct cause *c)
{
	if (clock_was_set(p, c) || rank_is_missing(p, c) || orders_differ(p, c) ||
		tokens_differ(p, c) || taken_twice(p, c))
		return;
	because(c, "positions were never taken, or their records were not given");
}

void proof_verdict(const struct proof *p, char text[PROOF_VERDICT_BYTES])
{
	struct cause c = {0};
	char runs[200];
	int n;

	if (proof_findings(p) > 0) {
		find_cause(p, &c);
		n = snprintf(text, PROOF_VERDICT_BYTES,
			"NOT EXACT: %s: of the samples from %" PRIu64 " to %" PRIu64 ", %" PRIu64
			" repeated, %" PRIu64 " lost, %" PRIu64 " altered%s%s",
			c.why, p->from, p->to - 1, p->found[REPEATED], p->found[LOST],
			p->found[ALTERED], c.do_this[0] ? "; " : "", c.do_this);
	} else {
		n = snprintf(text, PROOF_VERDICT_BYTES,
			"OK: every sample from %" PRIu64 " to %" PRIu64 " once", p->from,
			p->to - 1);
		if (p->skipped > 0)
			n += snprintf(text + n, PROOF_VERDICT_BYTES - (size_t)n,
				", but %" PRIu64 " skipped by request", p->skipped);
		if (clock_was_set(p, &c))
			n += snprintf(text + n, PROOF_VERDICT_BYTES - (size_t)n, "; %s; %s", c.why,
				c.do_this);
	}
	if (records_runs(p->records, runs, sizeof(runs)) > 1 && n < PROOF_VERDICT_BYTES)
		snprintf(text + n, PROOF_VERDICT_BYTES - (size_t)n,
			"; runs %s were taken for one job that was restarted: if they are not, "
			"verify the files of each alone",
			runs);
}
