/*
 * tokctl verify: compares the rows that trainers recorded with the order. Over a range of positions
 * all ranks together must have taken each position exactly once, with the tokens of the shards.
 */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What became of a position. */
enum { MISSING, TAKEN, SKIPPED };

enum finding_kind { REPEATED, LOST, ALTERED, FINDINGS };

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

struct finding {
	uint64_t position, count;	/* a range of positions; only LOST has more than 1 */
	const struct record_file *file; /* of the row; NULL for LOST */
};

enum { SHOWN = 10 /* findings of each kind that are kept */ };

/* The proof for one peer and one pass, over a range of positions. */
struct proof {
	const struct records *records;
	const struct record_peer *peer;
	uint64_t from, to;

	struct ctl_windows *reader;
	size_t window_bytes;
	void *other; /* a window, in the other width */

	/* the result */
	unsigned char *state; /* of each position: taken, skipped or neither */
	uint64_t samples, skipped, voided, outside, sum;
	const struct record_section *undone; /* the first one of void rows */
	struct {
		uint64_t samples;
		uint64_t epochs;  /* the last that was reached + 1; 0: none */
	} * served;		  /* of each dataset of the config */
	uint64_t found[FINDINGS]; /* number of positions */
	struct finding finding[FINDINGS][SHOWN];
	unsigned shown[FINDINGS];
};

struct row {
	struct ctl_window window; /* none: the order does not have the position */
	const struct record_section *section;
	uint64_t position, checksum;
};

static void add_finding(struct proof *p, enum finding_kind kind, struct finding fault)
{
	p->found[kind] += fault.count;
	if (p->shown[kind] < SHOWN)
		p->finding[kind][p->shown[kind]++] = fault;
}

/* Positions that were repeated, lost or altered. */
static uint64_t findings(const struct proof *p)
{
	return p->found[REPEATED] + p->found[LOST] + p->found[ALTERED];
}

/* ---- rows ---- */

/* Are the row's tokens those of the order? */
static bool has_tokens(const struct proof *p, const struct row *row, const void *tokens)
{
	if (record_checksum(row->position, tokens, p->window_bytes) == row->checksum)
		return true;
	/* The stream may have had another width when the row was taken. */
	uint32_t width = p->records->s->stream->token_bytes, other = width == 2 ? 4 : 2;
	uint64_t n = p->window_bytes / width;

	return convert_tokens(width == 2 ? SHARD_U16 : SHARD_U32, other, tokens, n, p->other) &&
	       record_checksum(row->position, p->other, n * other) == row->checksum;
}

/* Is the row, which the config has, the one that the order in force has there? */
static bool in_force(const struct proof *p, const struct row *row)
{
	const struct ctl_history *own = row->section->order,
				 *right = records_in_force(p->peer, row->position);
	const struct order_place *place = &row->window.place;
	struct order_place there;

	return own == right ||
	       (order_at(&right->order, row->position, &there) && there.epoch == place->epoch &&
		       there.window == place->window &&
		       right->map[there.dataset] == own->map[place->dataset]);
}

static bool is_past(const struct row *row)
{
	uint64_t end = row->section->order->order.end;

	return end && row->position >= end;
}

/* A row that counts: of the range, or past the end of the stream. @tokens: NULL if the order does
 * not have it. */
static void judge_row(void *context, const void *item, const void *tokens)
{
	const struct row *row = item;
	struct proof *p = context;
	const struct finding here = {row->position, 1, row->section->file};
	unsigned char *state;

	if (is_past(row)) {
		add_finding(p, ALTERED, here);
		return;
	}
	state = &p->state[row->position - p->from];
	if (*state == TAKEN) {
		add_finding(p, REPEATED, here);
	} else {
		*state = TAKEN;
		p->samples++;
		p->sum += row->checksum;
		if (tokens) {
			const struct order_place *place = &row->window.place;
			ptrdiff_t d = row->window.of->map[place->dataset] -
				      p->records->s->stream->dataset;

			p->served[d].samples++;
			if (place->epoch >= p->served[d].epochs)
				p->served[d].epochs = place->epoch + 1;
		}
	}
	if (!tokens || !has_tokens(p, row, tokens) || !in_force(p, row))
		add_finding(p, ALTERED, here);
}

static bool see_row(struct proof *p, struct row *row)
{
	const struct ctl_history *order = row->section->order;

	if (row->position >= row->section->limit) {
		p->voided++;
		p->undone = p->undone ? p->undone : row->section;
		return true;
	}
	if (!is_past(row) && (row->position < p->from || row->position >= p->to)) {
		p->outside++;
		return true;
	}
	/* Also past the end: findings stay in order. */
	if (order_at(&order->order, row->position, &row->window.place))
		row->window.of = order;
	return ctl_windows_add(p->reader, row);
}

static bool see_section(struct proof *p, const struct record_section *s)
{
	size_t bytes;
	const uint64_t(*entry)[2] = ctl_map(s->file->path, &bytes);
	bool done = true;

	if (!entry)
		return false;
	if (bytes / RECORD_ENTRY_BYTES < s->entry + s->rows)
		return ctl_error("%s: was truncated while it was read", s->file->path);
	for (uint64_t i = s->entry; done && i < s->entry + s->rows; i++)
		done = see_row(
			p, &(struct row){
				   .section = s, .position = entry[i][0], .checksum = entry[i][1]});
	return done;
}

/* ---- missing positions ---- */

/* Marks what was skipped by request, except ranges in which a row was taken and those that a
 * restart went back to. */
static void find_skips(struct proof *p)
{
	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];
		uint64_t from = s->begin.left > p->from ? s->begin.left : p->from,
			 to = MIN(MIN(s->begin.position, s->limit), p->to);

		if (from >= to)
			continue;

		unsigned char *at = p->state + (from - p->from);

		if (!memchr(at, TAKEN, to - from)) /* the ranks all skipped it at one step */
			memset(at, SKIPPED, to - from);
	}
}

/* The end of the positions from @at on that all have its state. */
static uint64_t end_of(const struct proof *p, uint64_t at)
{
	const unsigned char state = p->state[at - p->from];

	while (at < p->to && p->state[at - p->from] == state)
		at++;
	return at;
}

static void count_gaps(struct proof *p)
{
	for (uint64_t at = p->from, to; at < p->to; at = to) {
		to = end_of(p, at);
		if (p->state[at - p->from] == SKIPPED)
			p->skipped += to - at;
		else if (p->state[at - p->from] == MISSING)
			add_finding(p, LOST, (struct finding){at, to - at, NULL});
	}
}

/* Fills in the result. False after an error was printed. Call free_proof() either way. */
static bool run_proof(struct proof *p)
{
	const struct stream *stream = p->records->s->stream;
	size_t tokens = stream->begin.seq_len + stream->begin.extra;

	p->window_bytes = tokens * stream->token_bytes;
	p->other = malloc(tokens * sizeof(uint32_t));
	p->state = calloc(p->to - p->from, 1);
	p->served = calloc(stream->config->datasets, sizeof(*p->served));
	if (!p->other || !p->state || !p->served)
		return ctl_error(PHRASE_MEMORY);
	p->reader = ctl_windows_open(p->records->s, sizeof(struct row), judge_row, p);
	if (!p->reader)
		return false;
	for (size_t i = 0; i < p->peer->sections; i++)
		if (!see_section(p, &p->peer->section[i]))
			return false;
	if (!ctl_windows_flush(p->reader))
		return false;
	find_skips(p);
	count_gaps(p);
	return true;
}

static void free_proof(struct proof *p)
{
	ctl_windows_close(p->reader);
	free(p->other);
	free(p->state);
	free(p->served);
}

/* ---- what should have been taken, and by whom ---- */

/* Where the tokens of a position are. */
struct source {
	const char *dataset; /* NULL: the position is past the end of the stream */
	const char *shard;   /* NULL: the dataset is no longer in the config */
	uint64_t offset;
};

static struct source source_of(const struct proof *p, uint64_t position)
{
	struct ctl_window w = {.of = records_in_force(p->peer, position)};
	const struct dataset *dataset;
	struct source source = {0};
	uint64_t shard;

	if (!order_at(&w.of->order, position, &w.place))
		return source;
	source.dataset = w.of->cursor.dataset[w.place.dataset].name;
	dataset = ctl_window_locate(&w, &shard, &source.offset);
	source.shard = dataset ? shard_list_name(&dataset->list, shard) : NULL;
	return source;
}

/* The rank that should have taken a lost position. */
struct taker {
	const struct record_generation *generation; /* NULL: the position is before all of them */
	uint64_t rank;
	bool recorded; /* it has records of that generation */
	uint64_t last; /* after its last position there that counts */
};

static struct taker taker_of(const struct proof *p, uint64_t position)
{
	struct taker t = {.generation = NULL};

	for (size_t i = p->peer->generations; i-- > 0 && !t.generation;)
		if (p->peer->generation[i].begin.position <= position)
			t.generation = &p->peer->generation[i];
	if (!t.generation)
		return t;
	t.rank = (position - t.generation->begin.position) / t.generation->begin.micro_batch %
		 t.generation->begin.world;
	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];

		if (s->generation != t.generation || s->begin.rank != t.rank)
			continue;
		t.recorded = true;
		t.last = s->last > t.last ? s->last : t.last;
	}
	return t;
}

/*
 * If the first lost row is missing only because its rank stopped earlier than other ranks, returns
 * the position at which that incomplete last step begins; otherwise 0.
 */
static uint64_t whole_to(const struct proof *p)
{
	uint64_t first = p->finding[LOST][0].position;
	struct taker t = taker_of(p, first);
	const struct record_generation *g = t.generation;

	if (p->found[LOST] == 0 || !g || g + 1 < p->peer->generation + p->peer->generations ||
		t.last > first)
		return 0;
	return first - (first - g->begin.position) % (g->begin.world * g->begin.micro_batch);
}

/* ---- the verdict ---- */

/* Probable causes. Each is written to @why. False: it is another one. */

/* Only clocks tell which of two restarts was first. */
static bool clock_was_set(const struct proof *p, FILE *why)
{
	const struct record_peer *peer = p->peer;

	if (!peer->rewinding)
		return false;
	fprintf(why,
		"%s begins after %s by its clock, but at an earlier position, so rows of that file "
		"are void; if the clock was set back, verify the records before and after that "
		"moment separately",
		peer->rewinding->path, peer->voided->path);
	return true;
}

static bool rank_is_missing(const struct proof *p, FILE *why)
{
	uint64_t first = p->finding[LOST][0].position, whole = whole_to(p);
	struct taker t = taker_of(p, first);

	if (p->found[LOST] == 0 || !t.generation || (t.recorded && whole <= p->from))
		return false;
	if (!t.recorded)
		fprintf(why,
			"no record of rank %" PRIu64 " of %" PRIu64 " from position %" PRIu64
			" on was given; give the records of all ranks and nodes",
			t.rank, t.generation->begin.world, t.generation->begin.position);
	else
		fprintf(why,
			"rank %" PRIu64 " of %" PRIu64 " recorded nothing from position %" PRIu64
			" on; if the run was stopped there, add --to %" PRIu64
			" to end the range at the last complete step",
			t.rank, t.generation->begin.world, first, whole);
	return true;
}

static bool samples_differ(const struct proof *p, FILE *why)
{
	const struct finding *first = &p->finding[ALTERED][0];
	struct source source;

	if (p->found[ALTERED] == 0)
		return false;
	source = source_of(p, first->position);
	if (!source.shard)
		fprintf(why,
			"%s has rows past the end of the stream, or of a dataset that left the "
			"config",
			first->file->path);
	else
		fprintf(why,
			"%s has other tokens than shard %s of dataset %s, from another mix or "
			"another shard; restore that shard, and have all ranks load the same "
			"checkpoint",
			first->file->path, source.shard, source.dataset);
	return true;
}

static bool taken_twice(const struct proof *p, FILE *why)
{
	if (p->found[REPEATED] == 0)
		return false;
	fprintf(why,
		"%s has rows that were taken before: a job that ran twice, or a restart without "
		"its checkpoint",
		p->finding[REPEATED][0].file->path);
	return true;
}

/* Rows have no times, so nobody knows which were first. A rank whose rows count there, although it
 * did not begin again, may have a record that was not given. */
static void name_void(const struct proof *p, FILE *verdict)
{
	const struct record_section *s = p->peer->section, *end = s + p->peer->sections;
	const struct record_section *undone = p->undone;

	fprintf(verdict,
		"; %" PRIu64 " rows are void, first those of %s from %" PRIu64
		" on, where rank %" PRIu64 " began again",
		p->voided, undone->file->path, undone->limit, undone->begin.rank);
	while (s < end && (s->generation != undone->generation ||
				  s->begin.position >= undone->limit || s->last <= undone->limit))
		s++;
	if (s < end)
		fprintf(verdict, ", but not rank %" PRIu64 ": give all its records", s->begin.rank);
	fputs("; if both processes ran at once, they were trained on twice", verdict);
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
static void name_runs(const struct records *r, FILE *verdict)
{
	const char *first, *other;
	int n = run_of(&r->file[0], &first);

	for (size_t i = 1; i < r->files; i++) {
		int m = run_of(&r->file[i], &other);

		if (n == 0 || m == 0 || (n == m && strncmp(first, other, (size_t)n) == 0))
			continue;
		fprintf(verdict,
			"; runs %.*s, %.*s were taken for one job that was restarted: if they are "
			"not, verify the files of each alone",
			n, first, m, other);
		return;
	}
}

/* "OK: …", or "NOT EXACT: " with the probable cause, what to do, and what was found. */
static void write_verdict(const struct proof *p, FILE *to)
{
	if (findings(p) > 0) {
		fputs("NOT EXACT: ", to);
		if (!clock_was_set(p, to) && !rank_is_missing(p, to) && !samples_differ(p, to) &&
			!taken_twice(p, to)) {
			fputs("positions were never taken, or their records were not given", to);
			if (p->voided > 0)
				fprintf(to,
					", or a restart from position %" PRIu64
					" was discarded, and its records must be left out",
					p->undone->limit);
			if (p->peer->pass > 0)
				fputs(", or a checkpoint of an earlier pass was loaded", to);
		}
		fprintf(to,
			": of the samples from %" PRIu64 " to %" PRIu64 ", %" PRIu64
			" repeated, %" PRIu64 " lost, %" PRIu64 " altered",
			p->from, p->to - 1, p->found[REPEATED], p->found[LOST], p->found[ALTERED]);
	} else {
		fprintf(to, "OK: every sample from %" PRIu64 " to %" PRIu64 " once", p->from,
			p->to - 1);
		if (p->skipped > 0)
			fprintf(to, ", but %" PRIu64 " skipped by request", p->skipped);
		if (p->peer->rewinding)
			fputs("; ", to);
		clock_was_set(p, to);
		if (p->voided > 0)
			name_void(p, to);
	}
	name_runs(p->records, to);
}

/* ---- the result: a line of JSON; otherwise the verdict, then its numbers and faults ---- */

static void put_number(struct emit *e, const char *name, uint64_t value)
{
	emit_number(e, name, NULL, value);
	emit_line(e, "%-11s  %" PRIu64, name, value);
}

static void put_numbers(struct emit *e, const struct proof *p)
{
	uint64_t whole = whole_to(p);

	put_number(e, "peer", p->peer->peer);
	put_number(e, "pass", p->peer->pass);
	put_number(e, "samples", p->samples);
	for (enum finding_kind kind = 0; kind < FINDINGS; kind++)
		put_number(e, finding_name[kind], p->found[kind]);
	put_number(e, "skipped", p->skipped);
	put_number(e, "void", p->voided);
	put_number(e, "outside", p->outside);
	put_number(e, "generations", p->peer->generations);
	put_number(e, "records", p->records->files);
	put_number(e, "from", p->from);
	put_number(e, "to", p->to);
	put_number(e, "sum", p->sum);
	put_number(e, "seq_len", p->records->s->stream->begin.seq_len);
	if (whole > p->from)
		put_number(e, "whole_to", whole);
}

static void put_skips(struct emit *e, const struct proof *p)
{
	emit_open(e, "skips", '[');
	for (uint64_t at = p->from, to; at < p->to; at = to) {
		to = end_of(p, at);
		if (p->state[at - p->from] != SKIPPED)
			continue;
		emit_open(e, "", '[');
		emit_number(e, "", NULL, at);
		emit_number(e, "", NULL, to);
		emit_close(e, ']');
		emit_line(e, "skipped: positions %" PRIu64 " to %" PRIu64, at, to - 1);
	}
	emit_close(e, ']');
}

/* @kind, with where the tokens should have been taken from, and by which rank. */
static void put_finding(
	struct emit *e, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	struct source source = source_of(p, f->position);
	struct taker taker = taker_of(p, f->position);

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
	if (f->file) {
		emit_text(e, "record", NULL, f->file->path);
		emit_more(e, "  in %s", f->file->path);
	} else if (taker.generation) {
		emit_number(e, "rank", NULL, taker.rank);
		emit_number(e, "world", NULL, taker.generation->begin.world);
		emit_more(e, "  of rank %" PRIu64, taker.rank);
	}
	emit_close(e, '}');
}

static void put_datasets(struct emit *e, const struct proof *p)
{
	const struct cursor *c = &p->records->s->stream->begin;

	emit_open(e, "datasets", '[');
	for (uint32_t d = 0; d < c->datasets; d++) {
		emit_open(e, "", '{');
		emit_text(e, "name", NULL, c->dataset[d].name);
		emit_number(e, "samples", NULL, p->served[d].samples);
		emit_number(e, "epochs", NULL, p->served[d].epochs);
		emit_number(e, "windows", NULL, c->order[d].windows);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

static void put_mix(
	struct emit *e, uint64_t from, const struct cursor *c, const struct order_segment *s)
{
	emit_open(e, "", '{');
	emit_number(e, "from", NULL, from);
	emit_open(e, "shares", '{');
	for (uint32_t d = 0; d < s->datasets; d++)
		if (s->units[d] > 0)
			emit_decimal(e, c->dataset[d].name, NULL, ctl_fraction(s, d), 0);
	emit_close(e, '}');
	emit_close(e, '}');
}

/* The mixes that were in force in the range. */
static void put_mixes(struct emit *e, const struct proof *p)
{
	const struct record_force *force = p->peer->force, *end = force + p->peer->forces;
	const struct order_segment *last = NULL;
	uint64_t at = p->from;

	emit_open(e, "mixes", '[');
	for (; force < end; force++) {
		const struct order *order = &force->order->order;

		for (uint32_t i = 0; i < order->segments; i++) {
			const struct order_segment *const *s = &order->segment[i];
			uint64_t to = force + 1 < end ? MIN(force[1].from, p->to) : p->to;

			if (i + 1 < order->segments)
				to = MIN(to, s[1]->start);
			if (to <= at)
				continue;
			if (!last || !ctl_same_segment(last, *s))
				put_mix(e, at, &force->order->cursor, *s);
			last = *s;
			at = to;
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

/* False after an error was printed. */
static bool put_proof(struct emit *e, const struct proof *p)
{
	char verdict[4 * PATH_MAX];
	FILE *to = fmemopen(verdict, sizeof(verdict), "w");

	if (!to)
		return ctl_error(PHRASE_MEMORY);
	write_verdict(p, to);
	fclose(to);
	emit_line(e, "%s", verdict);
	put_numbers(e, p);
	put_skips(e, p);
	emit_open(e, "faults", '[');
	for (enum finding_kind kind = 0; kind < FINDINGS; kind++)
		for (unsigned i = 0; i < p->shown[kind]; i++)
			put_finding(e, p, kind, &p->finding[kind][i]);
	emit_close(e, ']');
	put_datasets(e, p);
	put_mixes(e, p);
	put_lives(e, p);
	emit_text(e, "verdict", NULL, verdict);
	emit_row(e);
	return true;
}

/* ---- the command ---- */

/* Sets the proof's range to what was recorded of its pass. */
static void see_range(struct proof *p)
{
	const struct records *r = p->records;

	p->from = UINT64_MAX;
	for (const struct record_section *s = r->section; s < r->section + r->sections; s++)
		if (s->pass == p->peer->pass) {
			p->from = MIN(p->from, s->begin.position);
			p->to = s->last > p->to ? s->last : p->to;
		}
}

/* Applies --from and --to. False after an error was printed. */
static bool set_range(struct proof *p, const struct ctl_arguments *a)
{
	const struct ctl_history *oldest = p->peer->force[0].order;
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t recorded = p->to, end = cursor_end(&oldest->cursor);

	p->from = ctl_number(a, "from", p->from);
	p->to = ctl_number(a, "to", MIN(recorded, end));
	if (p->to > end)
		return ctl_error(
			"--to %" PRIu64 ": the stream ends at position %" PRIu64, p->to, end);
	/* The last of several passes may still be going on. */
	if (p->records->passes > 1 && p->peer->pass + 1 == p->records->passes && recorded > p->from)
		p->to = MIN(p->to, recorded);
	if (p->to <= p->from)
		return ctl_error("the range from position %" PRIu64 " to %" PRIu64
				 " is empty; give --to above --from, or what was recorded",
			p->from, p->to);
	if (p->to - p->from > memory)
		return ctl_error("positions %" PRIu64 " to %" PRIu64
				 " need more memory than there is, a byte each; give --from and "
				 "--to",
			p->from, p->to);
	return ctl_history_has(oldest, p->from);
}

/* Proves each pass of each peer. Returns an exit status. */
static int prove(const struct ctl_arguments *a, const struct records *r)
{
	struct emit e = {.json = ctl_given(a, "json")};
	int status = CTL_OK;
	bool done = true, reached = false;

	for (size_t i = 0; i < r->peers && done; i++) {
		struct proof p = {.records = r, .peer = &r->peer[i]};

		see_range(&p);
		if (r->passes > 1 && ctl_given(a, "from") && p.to <= ctl_number(a, "from", 0))
			continue; /* this pass did not reach --from */
		reached = true;
		done = set_range(&p, a) && run_proof(&p) && put_proof(&e, &p);
		if (!done || findings(&p) > 0)
			status = CTL_FAILED;
		free_proof(&p);
	}
	if (!reached)
		status = ctl_fail("no pass reached --from %" PRIu64 "; give a lower one",
			ctl_number(a, "from", 0));
	return emit_end(&e, status);
}

static int answer(
	const struct ctl_arguments *a, const struct ctl_stream *s, const struct ctl_history *h)
{
	struct records records = {0};
	bool given = ctl_given(a, "run") || a->listed > 0, good = true;
	int status = CTL_FAILED;

	for (int i = 1; i < a->arguments && good; i++)
		good = records_add(&records, a->argument[i]);
	if (good && records_read(&records, s, given ? h : NULL))
		status = prove(a, &records);
	records_free(&records);
	return status;
}

static int verify(const struct ctl_arguments *a)
{
	return ctl_with_history(a, false, answer);
}

static const struct ctl_option options[] = {
	{CTL_CONFIG_NEEDED},
	{OPTION_LIST("cursor", "FILE",
		"cursor whose mixes count for all rows; default: those in the records")},
	{OPTION_TEXT("run", "RUN",
		"run whose last cursor in state_dir counts for all rows, or a cursor's file")},
	{OPTION_NUMBER("from", "POSITION", 0, UINT64_MAX,
		"first position of the range; default: the first recorded, which proves nothing of "
		"those before it")},
	{OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX,
		"end of the range, not included; default: the end of the records")},
	{CTL_JSON_OPTION},
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
