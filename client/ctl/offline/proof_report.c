/* The result of a proof: the probable cause of what is wrong with a run, and what is printed. */
#include "client/ctl/offline/offline.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* Where the tokens of a position are. */
struct source {
	const char *dataset; /* NULL: the position is past the end of the stream */
	const char *shard;   /* NULL: the dataset is no longer in the config */
	uint64_t offset;
};

static struct source source_of(const struct proof *p, uint64_t position)
{
	const struct record_order *o =
		&p->records->order[records_in_force(p->peer, position)->order];
	struct source source = {0};
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

/* The generation that should have taken @position. NULL: the position is before all of them. */
static const struct record_generation *generation_of(const struct proof *p, uint64_t position)
{
	for (size_t g = p->peer->generations; g-- > 0;)
		if (p->peer->generation[g].position <= position)
			return &p->peer->generation[g];
	return NULL;
}

/* The rank of @g that should have taken @position. */
static uint64_t rank_of(const struct record_generation *g, uint64_t position)
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

/*
 * If the first lost row is missing only because its rank stopped earlier than other ranks, returns
 * the position at which that incomplete last step begins; otherwise 0.
 */
static uint64_t whole_to(const struct proof *p)
{
	if (p->found[LOST] == 0 || p->peer->generations == 0)
		return 0;

	uint64_t first = p->finding[LOST][0].position;
	const struct record_generation *g = &p->peer->generation[p->peer->generations - 1];
	bool any;

	if (first < g->position || last_of(p, g, rank_of(g, first), &any) > first)
		return 0;
	return first - (first - g->position) % (g->world * g->micro_batch);
}

uint64_t proof_findings(const struct proof *p)
{
	return p->found[REPEATED] + p->found[LOST] + p->found[ALTERED];
}

/* ---- probable causes ---- */

enum { VERDICT_BYTES = 1400 };

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
	uint64_t first, rank, whole = whole_to(p);
	bool any;

	if (p->found[LOST] == 0)
		return false;
	first = p->finding[LOST][0].position;
	g = generation_of(p, first);
	if (!g)
		return false;
	rank = rank_of(g, first);
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
static bool one_shard(const struct proof *p, struct source *source)
{
	*source = source_of(p, p->finding[ALTERED][0].position);
	for (unsigned i = 1; i < p->shown[ALTERED] && source->shard; i++) {
		struct source other = source_of(p, p->finding[ALTERED][i].position);

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
	struct source source;

	if (p->found[ALTERED] == 0)
		return false;

	const struct finding *first = &p->finding[ALTERED][0];
	const char *file = only_file(p, ALTERED);

	source = source_of(p, first->position);
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

/* Sets @run to the run of a file that a Loader named, RUN.RANK-PEER.PID-TIME.record. Returns the
 * length of its name; 0: it has none. */
static int run_of(const struct record_file *file, const char **run)
{
	const char *slash = strrchr(file->path, '/'), *end;

	*run = slash ? slash + 1 : file->path;
	end = *run + strlen(*run);
	for (int dots = 0; dots < 3 && end; dots++)
		end = memrchr(*run, '.', (size_t)(end - *run));
	return end ? (int)(end - *run) : 0;
}

/* Several runs may be taken for one by mistake. */
static void name_runs(const struct records *r, char *text, size_t bytes)
{
	const char *first, *other;
	int n = run_of(&r->file[0], &first);

	for (size_t i = 1; i < r->files; i++) {
		int m = run_of(&r->file[i], &other);

		if (n == 0 || m == 0 || (n == m && strncmp(first, other, (size_t)n) == 0))
			continue;
		snprintf(text, bytes,
			"; runs %.*s, %.*s were taken for one job that was restarted: if they are "
			"not, verify the files of each alone",
			n, first, m, other);
		return;
	}
}

/* "OK: …", or "NOT EXACT: " with the probable cause, what was found, and what to do. */
static void put_verdict(const struct proof *p, char text[VERDICT_BYTES])
{
	struct cause c = {0};
	int n;

	if (proof_findings(p) > 0) {
		find_cause(p, &c);
		n = snprintf(text, VERDICT_BYTES,
			"NOT EXACT: %s: of the samples from %" PRIu64 " to %" PRIu64 ", %" PRIu64
			" repeated, %" PRIu64 " lost, %" PRIu64 " altered%s%s",
			c.why, p->from, p->to - 1, p->found[REPEATED], p->found[LOST],
			p->found[ALTERED], c.do_this[0] ? "; " : "", c.do_this);
	} else {
		n = snprintf(text, VERDICT_BYTES,
			"OK: every sample from %" PRIu64 " to %" PRIu64 " once", p->from,
			p->to - 1);
		if (p->skipped > 0)
			n += snprintf(text + n, VERDICT_BYTES - (size_t)n,
				", but %" PRIu64 " skipped by request", p->skipped);
		if (clock_was_set(p, &c))
			n += snprintf(
				text + n, VERDICT_BYTES - (size_t)n, "; %s; %s", c.why, c.do_this);
	}
	if (n < VERDICT_BYTES)
		name_runs(p->records, text + n, VERDICT_BYTES - (size_t)n);
}

/* ---- the result: a line of JSON; otherwise the verdict, then its numbers and faults ---- */

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

static void put_number(struct emit *e, const char *name, uint64_t value, const char *about)
{
	emit_number(e, name, name, value);
	if (about)
		emit_more(e, "  %s", about);
}

static void put_numbers(struct emit *e, const struct proof *p)
{
	const struct records *r = p->records;
	uint64_t whole = whole_to(p);

	emit_fields(e);
	emit_number(e, "peer", r->peers > 1 ? "peer" : NULL, p->peer->peer);
	emit_number(e, "pass", r->passes > 1 ? "pass" : NULL, p->peer->pass);
	put_number(e, "samples", p->samples, NULL);
	for (int kind = 0; kind < FINDINGS; kind++)
		put_number(e, finding_name[kind], p->found[kind], NULL);
	put_number(e, "skipped", p->skipped, "by request");
	put_number(e, "void", p->voided, "undone by restarts");
	put_number(e, "outside", p->outside, "not in the range from..to");
	put_number(e, "generations", p->peer->generations, NULL);
	emit_number(e, "records", NULL, r->files);
	put_number(e, "from", p->from, NULL);
	put_number(e, "to", p->to, NULL);
	put_number(e, "sum", p->sum, NULL);
	emit_number(e, "seq_len", NULL, r->s->stream->begin.seq_len);
	if (whole > p->from)
		emit_number(e, "whole_to", NULL, whole);
	emit_table(e);
}

static void put_skips(struct emit *e, const struct proof *p)
{
	emit_open(e, "skips", '[');
	for (size_t i = 0; i < p->skips; i++) {
		emit_open(e, "", '[');
		emit_number(e, "", NULL, p->skip[i].from);
		emit_number(e, "", NULL, p->skip[i].to);
		emit_close(e, ']');
		emit_line(e, "skipped: positions %" PRIu64 " to %" PRIu64, p->skip[i].from,
			p->skip[i].to - 1);
	}
	emit_close(e, ']');
}

/* Where the tokens should have been taken from. */
static void put_source(struct emit *e, const struct proof *p, uint64_t position)
{
	struct source source = source_of(p, position);

	if (source.shard) {
		emit_text(e, "dataset", NULL, source.dataset);
		emit_text(e, "shard", NULL, source.shard);
		emit_number(e, "offset", NULL, source.offset);
		emit_more(e, "  dataset %s  shard %s  offset %" PRIu64, source.dataset,
			source.shard, source.offset);
	} else if (source.dataset) {
		emit_more(e, "  dataset %s, which is no longer in the config", source.dataset);
	} else {
		emit_more(e, "  past the end of the stream");
	}
}

static void put_finding(
	struct emit *e, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	const struct record_generation *g = generation_of(p, f->position);

	emit_line(e, "%s: position %" PRIu64, finding_name[kind], f->position);
	emit_open(e, "", '{');
	emit_text(e, "fault", NULL, finding_name[kind]);
	emit_number(e, "position", NULL, f->position);
	emit_number(e, "count", NULL, f->count);
	put_source(e, p, f->position);
	if (kind != LOST) {
		emit_text(e, "record", NULL, p->records->file[f->file].path);
		emit_more(e, "  in %s", p->records->file[f->file].path);
	} else if (g) {
		emit_number(e, "rank", NULL, rank_of(g, f->position));
		emit_number(e, "world", NULL, g->world);
		emit_more(
			e, "  of rank %" PRIu64 " of %" PRIu64, rank_of(g, f->position), g->world);
	}
	if (f->count > 1)
		emit_more(e, "  and %" PRIu64 " more after it", f->count - 1);
	emit_close(e, '}');
}

static void put_findings(struct emit *e, const struct proof *p)
{
	emit_open(e, "faults", '[');
	for (int kind = 0; kind < FINDINGS; kind++) {
		uint64_t shown = 0;

		for (unsigned i = 0; i < p->shown[kind]; i++) {
			put_finding(e, p, (enum finding_kind)kind, &p->finding[kind][i]);
			shown += p->finding[kind][i].count;
		}
		if (p->found[kind] > shown)
			emit_line(e, "%s: and %" PRIu64 " more", finding_name[kind],
				p->found[kind] - shown);
	}
	emit_close(e, ']');
}

static void put_datasets(struct emit *e, const struct proof *p)
{
	emit_open(e, "datasets", '[');
	for (size_t i = 0; i < p->records->datasets; i++) {
		emit_open(e, "", '{');
		emit_text(e, "name", NULL, p->records->dataset[i].name);
		emit_number(e, "samples", NULL, p->served[i].samples);
		emit_number(e, "epochs", NULL, p->served[i].epochs);
		emit_number(e, "windows", NULL, p->records->dataset[i].windows);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

static void put_mix(
	struct emit *e, uint64_t from, const struct record_order *o, const struct order_segment *s)
{
	emit_open(e, "", '{');
	emit_number(e, "from", NULL, from);
	emit_open(e, "shares", '{');
	for (uint32_t d = 0; d < s->datasets; d++)
		if (s->units[d] > 0)
			emit_share(e, o->cursor.dataset[d].name, NULL, ctl_fraction(s, d));
	emit_close(e, '}');
	emit_close(e, '}');
}

/* The mixes that were in force in the range. */
static void put_mixes(struct emit *e, const struct proof *p)
{
	const struct order_segment *last = NULL;
	uint64_t at = p->from;

	emit_open(e, "mixes", '[');
	for (size_t f = 0; f < p->peer->forces && at < p->to; f++) {
		const struct record_order *o = &p->records->order[p->peer->force[f].order];
		uint64_t end = f + 1 < p->peer->forces ? p->peer->force[f + 1].from : p->to;

		for (uint32_t i = 0; i < o->order.segments; i++) {
			const struct order_segment *s = o->order.segment[i];
			uint64_t to = i + 1 < o->order.segments ? o->order.segment[i + 1]->start
								: UINT64_MAX;

			if (to <= at || at >= end || at >= p->to || s->start > at)
				continue;
			if (!last || !ctl_same_segment(last, s))
				put_mix(e, at, o, s);
			last = s;
			at = to < end ? to : end;
		}
	}
	emit_close(e, ']');
}

static void put_lives(struct emit *e, const struct proof *p)
{
	emit_open(e, "lives", '[');
	for (size_t i = 0; i < p->peer->lives; i++) {
		const struct record_life *l = &p->peer->life[i];

		emit_open(e, "", '{');
		emit_number(e, "time_ns", NULL, l->begin.time_ns);
		emit_number(e, "position", NULL, l->begin.position);
		emit_number(e, "left", NULL, l->begin.left);
		emit_number(e, "world", NULL, l->begin.world);
		emit_number(e, "micro_batch", NULL, l->begin.micro_batch);
		emit_number(e, "ranks", NULL, l->ranks);
		emit_number(e, "reached", NULL, l->reached);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

void proof_put(struct emit *e, const struct proof *p)
{
	char verdict[VERDICT_BYTES];

	put_verdict(p, verdict);
	emit_line(e, "%s", verdict);
	put_numbers(e, p);
	put_skips(e, p);
	put_findings(e, p);
	put_datasets(e, p);
	put_mixes(e, p);
	put_lives(e, p);
	emit_text(e, "verdict", NULL, verdict);
	emit_row(e);
}
