/* The result of a proof: the probable cause of what is wrong with a run, and what is printed. */
#include "client/ctl/offline/offline.h"
#include "daemon/shard/bytes.h"

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

/* ---- the verdict ---- */

struct text {
	char at[3 * PATH_MAX];
	size_t n;
};

/* Adds to @t. Always true. */
__attribute__((format(printf, 2, 3))) static bool say(struct text *t, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	t->n += (size_t)vsnprintf(t->at + t->n, sizeof(t->at) - t->n, format, args);
	va_end(args);
	if (t->n >= sizeof(t->at))
		t->n = sizeof(t->at) - 1;
	return true;
}

/* The file of all findings of @kind that were kept; NULL if there are several. */
static const char *only_file(const struct proof *p, enum finding_kind kind)
{
	for (unsigned i = 1; i < p->shown[kind]; i++)
		if (p->finding[kind][i].file != p->finding[kind][0].file)
			return NULL;
	return p->records->file[p->finding[kind][0].file].path;
}

/* Are the altered rows that were kept, several, all of one shard? @first: that of the first. */
static bool one_shard(const struct proof *p, const struct source *first)
{
	bool one = first->shard && p->found[ALTERED] > 1;

	for (unsigned i = 1; i < p->shown[ALTERED] && one; i++) {
		struct source other = source_of(p, p->finding[ALTERED][i].position);

		one = other.shard && strcmp(other.shard, first->shard) == 0 &&
		      strcmp(other.dataset, first->dataset) == 0;
	}
	return one;
}

/* Probable causes. False: it is another one. */

/* Only clocks tell which of two restarts was first. */
static bool clock_was_set(const struct proof *p, struct text *why)
{
	const struct record_peer *peer = p->peer;

	return peer->rewound &&
	       say(why,
		       "%s begins after %s by its clock, but at an earlier position, so rows of "
		       "that file are void; if the clock was set back, verify the records before "
		       "and after that moment separately",
		       p->records->file[peer->rewinding].path, p->records->file[peer->voided].path);
}

static bool rank_is_missing(const struct proof *p, struct text *why)
{
	uint64_t first = p->finding[LOST][0].position, whole = whole_to(p);
	const struct record_generation *g = p->found[LOST] ? generation_of(p, first) : NULL;
	bool any;

	if (!g)
		return false;
	last_of(p, g, rank_of(g, first), &any);
	if (!any)
		return say(why,
			"no record of rank %" PRIu64 " of %" PRIu64 " from position %" PRIu64
			" on was given; give the records of all ranks and nodes",
			rank_of(g, first), g->world, g->position);
	return whole > p->from &&
	       say(why,
		       "rank %" PRIu64 " of %" PRIu64 " recorded nothing from position %" PRIu64
		       " on; if the run was stopped there, add --to %" PRIu64
		       " to end the range at the last complete step",
		       rank_of(g, first), g->world, first, whole);
}

static bool samples_differ(const struct proof *p, struct text *why)
{
	if (p->files[0])
		return say(why,
			"%s and %s were served different mixes: position %" PRIu64
			" has other samples in them; all ranks must load the same checkpoint, and "
			"carry out each request at one step",
			p->files[0], p->files[1], p->differ_at);
	if (p->found[ALTERED] == 0)
		return false;
	const struct finding *first = &p->finding[ALTERED][0];
	struct source source = source_of(p, first->position);

	if (one_shard(p, &source))
		return say(why,
			"shard %s of dataset %s is not what the run was served; restore that shard",
			source.shard, source.dataset);
	return say(why, "%s has %s", p->records->file[first->file].path,
		!source.dataset ? "rows past the end of the stream"
		: p->found[ALTERED] > 1 && only_file(p, ALTERED)
			? "other tokens: another mix, or other shards"
			: "tokens that are not those of the shards");
}

static bool taken_twice(const struct proof *p, struct text *why)
{
	const char *file = p->found[REPEATED] ? only_file(p, REPEATED) : NULL;

	return p->found[REPEATED] > 0 &&
	       say(why, "%s%s", file ? file : "two processes took the same rows: ",
		       file ? " has rows that were taken before"
			    : "a job that ran twice, or a restart without its checkpoint");
}

/* Sets @run to the run of a file that a Loader named, RUN.RANK-PEER.PID-TIME.record. Returns the
 * length of its name; 0: it has none. */
static int run_of(const struct record_file *file, const char **run)
{
	const char *end = file->path + strlen(file->path);

	*run = bytes_name(file->path);
	for (int dots = 0; dots < 3 && end; dots++)
		end = memrchr(*run, '.', (size_t)(end - *run));
	return end ? (int)(end - *run) : 0;
}

/* Several runs may be taken for one by mistake. */
static void name_runs(const struct records *r, struct text *v)
{
	const char *first, *other;
	int n = run_of(&r->file[0], &first);

	for (size_t i = 1; i < r->files; i++) {
		int m = run_of(&r->file[i], &other);

		if (n == 0 || m == 0 || (n == m && strncmp(first, other, (size_t)n) == 0))
			continue;
		say(v,
			"; runs %.*s, %.*s were taken for one job that was restarted: if they are "
			"not, verify the files of each alone",
			n, first, m, other);
		return;
	}
}

/* "OK: …", or "NOT EXACT: " with the probable cause, what to do, and what was found. */
static void judge(const struct proof *p, struct text *v)
{
	if (proof_findings(p) > 0) {
		say(v, "NOT EXACT: ");
		if (!clock_was_set(p, v) && !rank_is_missing(p, v) && !samples_differ(p, v) &&
			!taken_twice(p, v))
			say(v, "positions were never taken, or their records were not given");
		say(v,
			": of the samples from %" PRIu64 " to %" PRIu64 ", %" PRIu64
			" repeated, %" PRIu64 " lost, %" PRIu64 " altered",
			p->from, p->to - 1, p->found[REPEATED], p->found[LOST], p->found[ALTERED]);
	} else {
		say(v, "OK: every sample from %" PRIu64 " to %" PRIu64 " once", p->from, p->to - 1);
		if (p->skipped > 0)
			say(v, ", but %" PRIu64 " skipped by request", p->skipped);
		if (p->peer->rewound)
			say(v, "; ");
		clock_was_set(p, v);
	}
	name_runs(p->records, v);
}

/* ---- the result: a line of JSON; otherwise the verdict, then its numbers and faults ---- */

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

static void put_numbers(struct emit *e, const struct proof *p)
{
	uint64_t whole = whole_to(p);
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{"peer", p->peer->peer},
		{"pass", p->peer->pass},
		{"samples", p->samples},
		{"repeated", p->found[REPEATED]},
		{"lost", p->found[LOST]},
		{"altered", p->found[ALTERED]},
		{"skipped", p->skipped},
		{"void", p->voided},
		{"outside", p->outside},
		{"generations", p->peer->generations},
		{"records", p->records->files},
		{"from", p->from},
		{"to", p->to},
		{"sum", p->sum},
		{"seq_len", p->records->s->stream->begin.seq_len},
	};

	emit_fields(e);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		emit_number(e, numbers[i].key, numbers[i].key, numbers[i].value);
	if (whole > p->from)
		emit_number(e, "whole_to", "whole_to", whole);
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

/* @kind, with where the tokens should have been taken from, and by which rank. */
static void put_finding(
	struct emit *e, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	const struct record_generation *g = kind == LOST ? generation_of(p, f->position) : NULL;
	struct source source = source_of(p, f->position);

	emit_line(e,
		"%s: position %" PRIu64 " to %" PRIu64 "  dataset %s  shard %s  offset %" PRIu64,
		finding_name[kind], f->position, f->position + f->count - 1,
		source.dataset ? source.dataset : "none: past the end of the stream",
		source.shard ? source.shard : "not in the config", source.offset);
	emit_open(e, "", '{');
	emit_text(e, "fault", NULL, finding_name[kind]);
	emit_number(e, "position", NULL, f->position);
	emit_number(e, "count", NULL, f->count);
	if (source.shard) {
		emit_text(e, "dataset", NULL, source.dataset);
		emit_text(e, "shard", NULL, source.shard);
		emit_number(e, "offset", NULL, source.offset);
	}
	if (kind != LOST) {
		emit_text(e, "record", NULL, p->records->file[f->file].path);
		emit_more(e, "  in %s", p->records->file[f->file].path);
	} else if (g) {
		emit_number(e, "rank", NULL, rank_of(g, f->position));
		emit_number(e, "world", NULL, g->world);
		emit_more(e, "  of rank %" PRIu64, rank_of(g, f->position));
	}
	emit_close(e, '}');
}

static void put_findings(struct emit *e, const struct proof *p)
{
	emit_open(e, "faults", '[');
	for (enum finding_kind kind = 0; kind < FINDINGS; kind++)
		for (unsigned i = 0; i < p->shown[kind]; i++)
			put_finding(e, p, kind, &p->finding[kind][i]);
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
	struct text v = {.n = 0};

	judge(p, &v);
	emit_line(e, "%s", v.at);
	put_numbers(e, p);
	put_skips(e, p);
	put_findings(e, p);
	put_datasets(e, p);
	put_mixes(e, p);
	put_lives(e, p);
	emit_text(e, "verdict", NULL, v.at);
	emit_row(e);
}
