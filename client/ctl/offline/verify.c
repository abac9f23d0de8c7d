/*
 * tokctl verify: the proof after the fact. Over a range of positions the rows that trainers
 * recorded, all ranks together, must be exactly the order: each position once, with the tokens that
 * the shards have there. One bit a position is held; records and shards are read as they come.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/reader.h"
#include "client/ctl/offline/records.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 10 }; /* of each fault */

enum fault_kind { REPEATED, LOST, ALTERED, FAULTS };

static const char *const fault_name[FAULTS] = {"repeated", "lost", "altered"};

struct finding {
	uint64_t position, count; /* a stretch of them; 1 unless lost */
	uint32_t file;		  /* unless lost */
};

struct stretch {
	uint64_t from, to;
};

struct question {
	const char *config, *stream, *run;
	const char **cursors, **paths;
	unsigned cursor_count, path_count;
	bool json, has_from, has_to;
	uint64_t from, to;
};

struct proof {
	const struct ctl_stream *s;
	const struct ctl_history *history;
	const struct dataset **map; /* [datasets] */
	struct ctl_reader *reader;
	void *tokens; /* of one window */
	size_t bytes;
	const struct records *records;
	const struct record_peer *peer;
	uint64_t from, to;
	uint64_t *taken; /* a bit a position */
	uint64_t samples, skipped, voided, outside, sum;
	uint64_t faults[FAULTS];
	struct finding fault[FAULTS][SHOWN];
	unsigned shown[FAULTS];
	struct stretch *skip; /* what is left out by request: ascending, apart, within the range */
	size_t skips;
	bool mixes_given;
};

static void add_fault(struct proof *p, enum fault_kind kind, struct finding fault)
{
	p->faults[kind] += fault.count;
	if (p->shown[kind] < SHOWN)
		p->fault[kind][p->shown[kind]++] = fault;
}

/* ---- what should be there ---- */

/* The window at @position. Only the segment that holds it is looked into: there may be many. */
static bool place_at(const struct proof *p, uint64_t position, struct order_place *place)
{
	struct order order = p->history->order;
	uint32_t lo = 0, hi = order.segments;

	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (order.segment[mid]->start <= position)
			lo = mid;
		else
			hi = mid;
	}
	order.segment += lo;
	order.segments = 1;
	return order_at(&order, position, place);
}

/* 1: the row's tokens are those of the order, 0: they are not, -1 after an error was printed. */
static int is_true(struct proof *p, uint64_t position, uint64_t checksum)
{
	struct order_place place;

	if (!place_at(p, position, &place))
		return 0;
	if (!ctl_reader_read(p->reader, &place, p->tokens))
		return -1;
	return record_checksum(position, p->tokens, p->bytes) == checksum;
}

/* ---- rows ---- */

/* False: it was taken already. */
static bool take(struct proof *p, uint64_t position)
{
	uint64_t i = position - p->from, bit = UINT64_C(1) << i % 64;

	if (p->taken[i / 64] & bit)
		return false;
	p->taken[i / 64] |= bit;
	return true;
}

static bool check_row(
	struct proof *p, const struct record_section *s, uint64_t position, uint64_t checksum)
{
	const struct finding here = {position, 1, s->file};
	uint64_t end = p->history->order.end;

	if (position >= s->limit) {
		p->voided++;
		return true;
	}
	if (end && position >= end) { /* nobody can have taken what the stream does not have */
		add_fault(p, ALTERED, here);
		return true;
	}
	if (position < p->from || position >= p->to) {
		p->outside++;
		return true;
	}
	if (take(p, position)) {
		p->samples++;
		p->sum += checksum;
	} else {
		add_fault(p, REPEATED, here);
	}

	int same = is_true(p, position, checksum);

	if (same == 0)
		add_fault(p, ALTERED, here);
	return same >= 0;
}

static bool check_rows(struct proof *p)
{
	struct record_tape tape;
	uint64_t position, checksum;
	int got = 0;

	record_tape_init(&tape, p->records);
	for (size_t i = 0; i < p->peer->sections && got == 0; i++) {
		const struct record_section *s = &p->peer->section[i];

		if (!record_tape_section(&tape, s))
			got = -1;
		while (got == 0 && (got = record_tape_next(&tape, &position, &checksum)) == 1)
			got = check_row(p, s, position, checksum) ? 0 : -1;
	}
	record_tape_close(&tape);
	return got == 0;
}

/* ---- what nobody took ---- */

static int by_from(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

static bool is_taken(const struct proof *p, uint64_t position)
{
	uint64_t i = position - p->from;

	return p->taken[i / 64] >> i % 64 & 1;
}

/* The first position from @at on, below @to, that is taken or not; @to if there is none. */
static uint64_t find(const struct proof *p, uint64_t at, bool taken)
{
	while (at < p->to && is_taken(p, at) != taken) {
		uint64_t i = at - p->from, word = p->taken[i / 64];

		if (i % 64 == 0 && word == (taken ? 0 : UINT64_MAX)) /* all 64 are not it */
			at = p->to - at > 64 ? at + 64 : p->to;
		else
			at++;
	}
	return at;
}

/* The stretches that the run was made to skip, where nobody took anything and no restart went back
 * into them.
 */
static bool find_skips(struct proof *p)
{
	size_t n = 0;

	p->skip = calloc(p->peer->sections, sizeof(*p->skip));
	if (!p->skip)
		return ctl_fail("out of memory") == CTL_OK;
	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];
		uint64_t to = s->begin.position < s->limit ? s->begin.position : s->limit;
		struct stretch one = {
			s->begin.left > p->from ? s->begin.left : p->from, to < p->to ? to : p->to};

		if (one.from < one.to &&
			find(p, one.from, true) >= one.to) /* else not all skipped it at one step */
			p->skip[n++] = one;
	}
	qsort(p->skip, n, sizeof(*p->skip), by_from);
	for (size_t i = 0; i < n; i++)
		if (p->skips == 0 || p->skip[i].from > p->skip[p->skips - 1].to)
			p->skip[p->skips++] = p->skip[i];
		else if (p->skip[i].to > p->skip[p->skips - 1].to)
			p->skip[p->skips - 1].to = p->skip[i].to;
	return true;
}

/* Nobody took [@at, @to): what of it is lost, and not skipped by request? @skip is the first
 * stretch that may reach into it. */
static void count_gap(struct proof *p, uint64_t at, uint64_t to, size_t *skip)
{
	while (at < to) {
		while (*skip < p->skips && p->skip[*skip].to <= at)
			++*skip;

		const struct stretch *s = *skip < p->skips ? &p->skip[*skip] : NULL;
		uint64_t lost_to = s && s->from < to ? (s->from > at ? s->from : at) : to;

		if (lost_to > at)
			add_fault(p, LOST, (struct finding){at, lost_to - at, 0});
		at = lost_to;
		if (at < to) {
			uint64_t skip_to = s->to < to ? s->to : to;

			p->skipped += skip_to - at;
			at = skip_to;
		}
	}
}

static void count_gaps(struct proof *p)
{
	size_t skip = 0;

	for (uint64_t at = find(p, p->from, false); at < p->to;) {
		uint64_t to = find(p, at, true);

		count_gap(p, at, to, &skip);
		at = find(p, to, false);
	}
}

/* Which generation should have taken @position; NULL: it is before all of them. */
static const struct record_generation *who(const struct proof *p, uint64_t position)
{
	for (size_t g = p->peer->generations; g-- > 0;)
		if (p->peer->generation[g].position <= position)
			return &p->peer->generation[g];
	return NULL;
}

static uint64_t rank_of(const struct record_generation *g, uint64_t position)
{
	return (position - g->position) / g->micro_batch % g->world;
}

/*
 * If the first lost row is missing only because its rank stopped earlier than others, the last step
 * is not whole: the position at which that step begins; else 0.
 */
static uint64_t whole_to(const struct proof *p)
{
	if (p->faults[LOST] == 0 || p->peer->generations == 0)
		return 0;

	uint64_t first = p->fault[LOST][0].position;
	size_t newest = p->peer->generations - 1;
	const struct record_generation *g = &p->peer->generation[newest];

	if (first < g->position)
		return 0;
	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];

		if (s->generation == newest && s->begin.rank == rank_of(g, first) &&
			s->last > first)
			return 0;
	}
	return first - (first - g->position) % (g->world * g->micro_batch);
}

/* ---- saying it ---- */

static uint64_t missing(const struct proof *p)
{
	return p->faults[REPEATED] + p->faults[LOST] + p->faults[ALTERED];
}

static void put_field(struct ctl_out *out, const char *name, uint64_t value, const char *about)
{
	ctl_put_left(out, name, 12);
	ctl_put_right(out, value, 20);
	ctl_put(out, about ? "  " : "");
	ctl_put(out, about ? about : "");
	ctl_put(out, "\n");
}

struct place_text {
	bool known;
	const char *dataset, *shard;
	uint64_t offset;
};

static struct place_text describe(const struct proof *p, uint64_t position)
{
	const struct ctl_history *h = p->history;
	struct place_text text = {0};
	struct order_place place;
	uint64_t shard;

	if (!place_at(p, position, &place))
		return text;

	const struct dataset *dataset = p->map[place.dataset];

	text.dataset = h->widest->dataset[place.dataset].name;
	if (!dataset)
		return text;
	table_locate(&dataset->table, &h->widest->order[place.dataset], h->widest->seed,
		place.epoch, place.window, &shard, &text.offset);
	text.shard = dataset_shard_name(dataset, shard);
	text.known = true;
	return text;
}

static void put_where(struct ctl_out *out, const char *before, uint64_t value)
{
	ctl_put(out, before);
	ctl_put_number(out, value);
}

static void put_fault(
	struct ctl_out *out, const struct proof *p, enum fault_kind kind, const struct finding *f)
{
	struct place_text text = describe(p, f->position);
	const struct record_generation *g = who(p, f->position);

	ctl_put(out, fault_name[kind]);
	put_where(out, ": position ", f->position);
	if (text.known) {
		ctl_put(out, "  dataset ");
		ctl_put_left(out, text.dataset, 0);
		ctl_put(out, "  shard ");
		ctl_put_left(out, text.shard, 0);
		put_where(out, "  offset ", text.offset);
	} else {
		ctl_put(out, "  past the end of the stream");
	}
	if (kind != LOST) {
		ctl_put(out, "  in ");
		ctl_put_left(out, p->records->file[f->file].path, 0);
	} else if (g) {
		put_where(out, "  of rank ", rank_of(g, f->position));
		put_where(out, " of ", g->world);
	}
	if (f->count > 1) {
		put_where(out, "  and ", f->count - 1);
		ctl_put(out, " more behind it");
	}
	ctl_put(out, "\n");
}

static void print_text(struct ctl_out *out, const struct proof *p)
{
	if (p->records->peers > 1)
		put_field(out, "peer", p->peer->peer, NULL);
	if (p->records->passes > 1)
		put_field(out, "pass", p->peer->pass, "over the stream");
	put_field(out, "samples", p->samples, NULL);
	put_field(out, "repeated", p->faults[REPEATED], NULL);
	put_field(out, "lost", p->faults[LOST], NULL);
	put_field(out, "altered", p->faults[ALTERED], NULL);
	put_field(out, "skipped", p->skipped, "by request");
	put_field(out, "void", p->voided, "undone by restarts");
	put_field(out, "outside", p->outside, "not from `from` to `to`");
	put_field(out, "generations", p->peer->generations, NULL);
	put_field(out, "from", p->from, NULL);
	put_field(out, "to", p->to, NULL);
	put_field(out, "sum", p->sum, NULL);
	for (size_t i = 0; i < p->skips; i++) {
		put_where(out, "skipped: positions ", p->skip[i].from);
		put_where(out, " to ", p->skip[i].to - 1);
		ctl_put(out, "\n");
	}
	for (int kind = 0; kind < FAULTS; kind++) {
		uint64_t shown = 0;

		for (unsigned i = 0; i < p->shown[kind]; i++) {
			put_fault(out, p, (enum fault_kind)kind, &p->fault[kind][i]);
			shown += p->fault[kind][i].count;
		}
		if (p->faults[kind] > shown) {
			ctl_put(out, fault_name[kind]);
			put_where(out, ": and ", p->faults[kind] - shown);
			ctl_put(out, " more\n");
		}
	}
}

static void put_json_fault(
	struct ctl_out *out, const struct proof *p, enum fault_kind kind, const struct finding *f)
{
	struct place_text text = describe(p, f->position);
	const struct record_generation *g = who(p, f->position);

	ctl_put(out, "{\"fault\":");
	ctl_put_string(out, fault_name[kind]);
	ctl_put(out, ",");
	ctl_put_pair(out, "position", f->position);
	ctl_put(out, ",");
	ctl_put_pair(out, "count", f->count);
	if (text.known) {
		ctl_put(out, ",\"dataset\":");
		ctl_put_string(out, text.dataset);
		ctl_put(out, ",\"shard\":");
		ctl_put_string(out, text.shard);
		ctl_put(out, ",");
		ctl_put_pair(out, "offset", text.offset);
	}
	if (kind != LOST) {
		ctl_put(out, ",\"record\":");
		ctl_put_string(out, p->records->file[f->file].path);
	} else if (g) {
		ctl_put(out, ",");
		ctl_put_pair(out, "rank", rank_of(g, f->position));
		ctl_put(out, ",");
		ctl_put_pair(out, "world", g->world);
	}
	ctl_put(out, "}");
}

static void put_json_lists(struct ctl_out *out, const struct proof *p)
{
	const char *comma = "";

	ctl_put(out, ",\"skips\":[");
	for (size_t i = 0; i < p->skips; i++) {
		put_where(out, i ? ",[" : "[", p->skip[i].from);
		put_where(out, ",", p->skip[i].to);
		ctl_put(out, "]");
	}
	ctl_put(out, "],\"faults\":[");
	for (int kind = 0; kind < FAULTS; kind++)
		for (unsigned i = 0; i < p->shown[kind]; i++) {
			ctl_put(out, comma);
			put_json_fault(out, p, (enum fault_kind)kind, &p->fault[kind][i]);
			comma = ",";
		}
	ctl_put(out, "]");
}

static void print_json(struct ctl_out *out, const struct proof *p)
{
	const struct {
		const char *name;
		uint64_t value;
	} pair[] = {
		{"peer", p->peer->peer},
		{"pass", p->peer->pass},
		{"samples", p->samples},
		{"repeated", p->faults[REPEATED]},
		{"lost", p->faults[LOST]},
		{"altered", p->faults[ALTERED]},
		{"skipped", p->skipped},
		{"void", p->voided},
		{"outside", p->outside},
		{"generations", p->peer->generations},
		{"records", p->records->files},
		{"from", p->from},
		{"to", p->to},
		{"sum", p->sum},
	};
	uint64_t whole = whole_to(p);

	for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
		ctl_put(out, i ? "," : "{");
		ctl_put_pair(out, pair[i].name, pair[i].value);
	}
	if (whole > p->from) {
		ctl_put(out, ",");
		ctl_put_pair(out, "whole_to", whole);
	}
	put_json_lists(out, p);
	ctl_put(out, "}\n");
}

/* On stderr, after the facts. */
static void give_hint(const struct proof *p)
{
	uint64_t whole = whole_to(p);

	if (whole > p->from)
		ctl_fail("rank %" PRIu64 " of %" PRIu64 " recorded nothing from position %" PRIu64
			 " on: if the run was stopped there, --to %" PRIu64
			 " ends at the last whole step",
			rank_of(who(p, p->fault[LOST][0].position), p->fault[LOST][0].position),
			who(p, p->fault[LOST][0].position)->world, p->fault[LOST][0].position,
			whole);
	else if (p->faults[LOST] > 0)
		ctl_fail(
			"what is lost was taken by nobody, or its record is not among those given");
	if (p->faults[ALTERED] > 0 && !p->mixes_given)
		ctl_fail("the order is that of the config: if the run's mix was changed, give "
			 "--run RUN (or "
			 "--cursor F...)");
}

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

static bool prove(struct proof *p)
{
	p->map = calloc(p->history->widest->datasets, sizeof(const struct dataset *));
	p->reader = ctl_reader_open(p->s, p->history);
	p->bytes = (p->s->stream->begin.seq_len + p->s->stream->begin.extra) *
		   p->s->stream->token_bytes;
	p->tokens = malloc(p->bytes);
	p->taken = calloc((p->to - p->from + 63) / 64, sizeof(*p->taken));
	if (!p->map || !p->reader || !p->tokens || !p->taken)
		return ctl_fail("out of memory") == CTL_OK;
	stream_map(p->s->stream, p->history->widest, p->map);
	if (!check_rows(p) || !find_skips(p))
		return false;
	count_gaps(p);
	return true;
}

static void proof_free(struct proof *p)
{
	ctl_reader_close(p->reader);
	free(p->map);
	free(p->tokens);
	free(p->taken);
	free(p->skip);
}

static int prove_peer(struct proof *p, bool json)
{
	struct ctl_out out = {0};
	int status = CTL_FAILED;

	if (prove(p)) {
		if (json)
			print_json(&out, p);
		else
			print_text(&out, p);
		status = ctl_finish(&out, missing(p) > 0 ? CTL_FAILED : CTL_OK);
		if (!json)
			give_hint(p);
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
			.to = range.to,
			.mixes_given = q->run || q->cursor_count > 0};

		if (prove_peer(&p, q->json) != CTL_OK)
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
