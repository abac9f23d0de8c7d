/*
 * tokctl when: the order backwards, from a token to the positions of the windows that hold it.
 *
 * A cursor knows two segments of the schedule at most. Several cursors of one run know more; they are joined
 * into one history. Two segments follow each other only if the counts and roundings of the second are those
 * that the first leads to, so a gap between cursors is seen, and so is a pending mix that was replaced before
 * it came to act.
 */
#include "ctl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct known {
	const struct order_segment *segment;
	const struct order_segment *after; /* pending: what it was announced to follow; NULL: it has acted */
	uint64_t seen;			   /* position of the cursor that has it */
};

struct history {
	const struct cursor *widest; /* the cursor with the longest list of datasets */
	struct known *known;	     /* [2 × cursors] */
	unsigned count;
	const struct order_segment **segment; /* the joined ones */
	uint32_t segments;
};

static bool same_segment(const struct order_segment *a, const struct order_segment *b)
{
	uint32_t n = a->datasets;

	return a->start == b->start && n == b->datasets &&
	       memcmp(a->units, b->units, n * sizeof(*a->units)) == 0 &&
	       memcmp(a->base, b->base, n * sizeof(*a->base)) == 0 &&
	       memcmp(a->phase, b->phase, a->padded * sizeof(*a->phase)) == 0;
}

/* Does @a, ending where @b starts, lead to exactly @b? */
static bool leads_to(const struct order_segment *a, const struct order_segment *b)
{
	struct order_segment *next = order_segment_next(a, b->start, b->units, b->datasets);
	bool same = next && same_segment(next, b);

	order_segment_free(next);
	return same;
}

/* Ascending starts; what has acted before what is only announced; then the later cursor's word first. */
static int by_start(const void *a, const void *b)
{
	const struct known *x = a, *y = b;

	if (x->segment->start != y->segment->start)
		return x->segment->start < y->segment->start ? -1 : 1;
	if (!x->after != !y->after)
		return x->after ? 1 : -1;
	return x->seen > y->seen ? -1 : x->seen < y->seen;
}

/* Is @later, by the sorting, the same as @known? A pending mix is also what it follows, unless it has acted.
 */
static bool repeats(const struct known *known, const struct known *later)
{
	return same_segment(known->segment, later->segment) &&
	       (!known->after || (later->after && same_segment(known->after, later->after)));
}

/* All segments once, sorted. */
static void collect(struct history *h, const struct cursor *cursors, unsigned n)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < n; i++) {
		const struct order_segment *now = cursors[i].segment[0],
					   *then = cursors[i].segments > 1 ? cursors[i].segment[1] : NULL;

		h->known[h->count++] = (struct known){now, NULL, cursors[i].next};
		if (then)
			h->known[h->count++] = (struct known){then, now, cursors[i].next};
	}
	qsort(h->known, h->count, sizeof(*h->known), by_start);
	for (unsigned i = 0; i < h->count; i++) {
		bool seen = false;

		for (unsigned j = 0; j < kept && !seen; j++)
			seen = repeats(&h->known[j], &h->known[i]);
		if (!seen)
			h->known[kept++] = h->known[i];
	}
	h->count = kept;
}

/*
 * The way from the acted segment @at to the next acted one, @to (or behind the last one, where @to is the
 * count): directly, or over one of the pending mixes between them that were announced to follow @at. (One
 * announced to follow an earlier segment was replaced by @at.) False if there is no way. *@over: the pending
 * one that acted or will, or NULL.
 */
static bool bridge(const struct history *h, unsigned at, unsigned to, const struct order_segment **over)
{
	const struct order_segment *a = h->known[at].segment,
				   *b = to < h->count ? h->known[to].segment : NULL;
	uint64_t seen = 0;

	*over = NULL;
	if (b && leads_to(a, b))
		return true;
	for (unsigned i = at + 1; i < to; i++) {
		const struct order_segment *p = h->known[i].segment;

		if (!same_segment(h->known[i].after, a) || (b && !leads_to(p, b)))
			continue;
		/* Of several mixes announced for what is to come, the one that the latest cursor has. */
		if (!*over || h->known[i].seen > seen) {
			*over = p;
			seen = h->known[i].seen;
		}
	}
	return *over || !b;
}

static bool join(struct history *h)
{
	unsigned at = 0;

	/* A cursor's own current segment stands at or before its pending one: the first known has acted. */
	while (at < h->count) {
		const struct order_segment *over;
		unsigned to = at + 1;

		while (to < h->count && h->known[to].after)
			to++;
		h->segment[h->segments++] = h->known[at].segment;
		if (!bridge(h, at, to, &over)) {
			ctl_fail("the cursors do not join: the mix from %" PRIu64
				 " does not lead to the one from %" PRIu64
				 "; give a cursor saved between them, or leave out those of another run",
				h->known[at].segment->start, h->known[to].segment->start);
			return false;
		}
		if (over)
			h->segment[h->segments++] = over;
		at = to;
	}
	return true;
}

/* One run's list of datasets only ever grows at its end. */
static bool choose_widest(
	struct history *h, const struct cursor *cursors, const char *const *names, unsigned n)
{
	h->widest = &cursors[0];
	for (unsigned i = 1; i < n; i++)
		if (cursors[i].datasets > h->widest->datasets)
			h->widest = &cursors[i];
	for (unsigned i = 0; i < n; i++)
		for (uint32_t d = 0; d < cursors[i].datasets; d++)
			if (strcmp(cursors[i].dataset[d].name, h->widest->dataset[d].name) != 0) {
				ctl_fail("%s: its dataset %u is %s, another cursor's is %s: they are not of "
					 "one run",
					names[i], d, cursors[i].dataset[d].name, h->widest->dataset[d].name);
				return false;
			}
	return true;
}

/* ---- the question ---- */

struct question {
	const char *dataset, *shard;
	uint64_t offset, epoch;
	bool json;
};

static void print(struct ctl_out *out, const struct question *q, uint64_t position, uint64_t window)
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

/* Windows [first, first + count) of the cursor's dataset @d. */
static int print_windows(
	const struct history *h, const struct question *q, int d, uint64_t first, uint64_t count)
{
	struct order order = cursor_order(h->widest);
	struct ctl_out out = {0};
	uint64_t served = 0;

	order.segment = (const struct order_segment *const *)h->segment;
	order.segments = h->segments;
	for (uint64_t w = first; w < first + count && !out.failed; w++) {
		struct order_place place = {(uint32_t)d, q->epoch, w};
		uint64_t position;

		if (!order_when(&order, &place, &position))
			continue;
		print(&out, q, position, w);
		served++;
	}
	if (served > 0 || out.failed)
		return ctl_finish(&out, CTL_OK);
	if (h->segment[0]->start > 0)
		return ctl_fail("never served from position %" PRIu64
				" on, where the earliest known mix begins; "
				"give --cursor of earlier ones too",
			h->segment[0]->start);
	return ctl_fail("never served: dataset %s does not come to epoch %" PRIu64 " of these windows",
		q->dataset, q->epoch);
}

static int answer(const struct stream *stream, const struct history *h, const struct question *q)
{
	int d = cursor_find(h->widest, q->dataset);
	const struct dataset *dataset = NULL;

	for (uint32_t i = 0; i < stream->config->datasets; i++)
		if (strcmp(stream->dataset[i].config->name, q->dataset) == 0)
			dataset = &stream->dataset[i];
	if (!dataset)
		return ctl_fail("--dataset: stream %s has none called %s", stream->config->name, q->dataset);
	if (d < 0)
		return ctl_fail("never served: the cursor does not have dataset %s", q->dataset);
	int64_t shard = dataset_find_shard(dataset, q->shard);

	if (shard < 0)
		return ctl_fail("--shard: dataset %s has no shard %s (a path relative to %s)", q->dataset,
			q->shard, dataset->root);
	uint64_t tokens = dataset->table.tokens[shard], first, count;

	if (q->offset >= tokens)
		return ctl_fail("--offset: %s has %" PRIu64 " tokens, %" PRIu64 " is beyond them", q->shard,
			tokens, q->offset);
	table_holding(&dataset->table, &h->widest->order[d], h->widest->seed, q->epoch, (uint64_t)shard,
		q->offset, &first, &count);
	if (count == 0)
		return ctl_fail("never served: no window of epoch %" PRIu64 " holds token %" PRIu64 " of %s",
			q->epoch, q->offset, q->shard);
	return print_windows(h, q, d, first, count);
}

static int join_and_answer(const struct stream *stream, const struct cursor *cursors,
	const char *const *names, unsigned n, const struct question *q)
{
	struct history h = {
		.known = calloc(2 * (size_t)n, sizeof(*h.known)),
		.segment = calloc(2 * (size_t)n, sizeof(const struct order_segment *)),
	};
	int status = CTL_FAILED;

	if (!h.known || !h.segment) {
		ctl_fail("out of memory");
	} else if (choose_widest(&h, cursors, names, n)) {
		collect(&h, cursors, n);
		if (join(&h))
			status = answer(stream, &h, q);
	}
	free(h.known);
	free(h.segment);
	return status;
}

static int with_cursors(
	const struct stream *stream, const char *const *paths, unsigned n, const struct question *q)
{
	struct cursor *cursors;
	int status = CTL_FAILED;
	unsigned read = 0;

	if (n == 0)
		return join_and_answer(stream, &stream->begin, (const char *const[]){"the config"}, 1, q);
	cursors = calloc(n, sizeof(*cursors));
	if (!cursors)
		return ctl_fail("out of memory");
	while (read < n && ctl_cursor_read(&cursors[read], paths[read], stream))
		read++;
	if (read == n)
		status = join_and_answer(stream, cursors, paths, n, q);
	for (unsigned i = 0; i < n; i++)
		cursor_free(&cursors[i]);
	free(cursors);
	return status;
}

static int when(int argc, char **argv, const char **cursors)
{
	const char *config = NULL, *offset = NULL, *epoch = NULL;
	struct question q = {0};
	unsigned count = 0;
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "dataset", .value = &q.dataset},
		{.name = "shard", .value = &q.shard},
		{.name = "offset", .value = &offset},
		{.name = "epoch", .value = &epoch},
		{.name = "cursor", .list = cursors, .count = &count},
		{.name = "json", .flag = &q.json},
	};
	int n = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0])), status;
	struct ctl_stream s;

	if (n < 0)
		return CTL_USAGE;
	if (n < 1 || (n > 1 && count == 0) || !config || !q.dataset || !q.shard || !offset)
		return ctl_usage(argv[0], "needs -c FILE, one STREAM, --dataset, --shard and --offset");
	if (!ctl_number(offset, &q.offset) || (epoch && !ctl_number(epoch, &q.epoch)))
		return ctl_usage(argv[0], "--offset and --epoch must be whole numbers below 2^64");
	for (int i = 2; i <= n; i++) /* "--cursor A B": the shell's way of giving several */
		cursors[count++] = argv[i];
	if (!ctl_stream_open(&s, config, argv[1]))
		return CTL_FAILED;
	status = with_cursors(s.stream, cursors, count, &q);
	ctl_stream_close(&s);
	return status;
}

int ctl_when(int argc, char **argv)
{
	const char **cursors = calloc((size_t)argc, sizeof(*cursors));
	int status = cursors ? when(argc, argv, cursors) : ctl_fail("out of memory");

	free(cursors);
	return status;
}
