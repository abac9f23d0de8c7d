/*
 * The mixes of a run, joined from several cursors.
 *
 * A cursor contains its current segment and the pending ones. Two segments follow each other only
 * if the counts and roundings of the second are those that the first leads to. This finds gaps
 * between cursors, and mixes that were replaced before they began.
 *
 * Cursors named one by one come in any order and are joined by this rule alone. tokend's mix log
 * has an order, so it also covers a run that was restarted from an older checkpoint: from where a
 * later file's current segment begins, that file replaces what earlier ones announced.
 */
#include "client/ctl/offline/history.h"

#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/run_log.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cursor of the run, and its file. */
struct source {
	struct cursor cursor;
	char *path;
	unsigned given; /* its index in the arguments */
};

struct ctl_history_parts {
	struct source *source;
	unsigned sources;
	const struct order_segment **segment; /* the joined ones, borrowed from the sources */
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

static void push(struct ctl_history_parts *p, const struct order_segment *segment)
{
	p->segment[p->segments++] = segment;
}

/* ---- cursors in any order ---- */

/* By the start of the current segment, then in the order given. */
static int by_start(const void *a, const void *b)
{
	const struct source *x = a, *y = b;
	uint64_t from_x = x->cursor.segment[0]->start, from_y = y->cursor.segment[0]->start;

	if (from_x != from_y)
		return from_x < from_y ? -1 : 1;
	return x->given < y->given ? -1 : x->given > y->given;
}

/* Index of @segment in @cursor, or cursor->segments if it is not there. */
static uint32_t find(const struct cursor *cursor, const struct order_segment *segment)
{
	uint32_t i = 0;

	while (i < cursor->segments && !same_segment(cursor->segment[i], segment))
		i++;
	return i;
}

/* A range of one cursor's pending segments, which follow a segment that is certain. */
struct stretch {
	const struct cursor *of;
	uint32_t from, to;
};

/* Replaces *@best with @found, unless the cursor of *@best is from later in the run. */
static void prefer(struct stretch *best, struct stretch found)
{
	if (!best->of || found.of->next >= best->of->next)
		*best = found;
}

/* The segments between @a and @b, both in force at some time, from a cursor that announced them. */
static struct stretch between(const struct ctl_history_parts *p, const struct order_segment *a,
	const struct order_segment *b)
{
	struct stretch best = {0};

	for (unsigned i = 0; i < p->sources; i++) {
		const struct cursor *c = &p->source[i].cursor;
		uint32_t at = find(c, a), to = at + 1;

		while (to < c->segments && c->segment[to]->start < b->start &&
			!leads_to(c->segment[to], b))
			to++;
		if (to < c->segments && c->segment[to]->start < b->start)
			prefer(&best, (struct stretch){c, at + 1, to + 1});
	}
	return best;
}

/* The segments announced to follow @a, the last one that was in force. */
static struct stretch announced(const struct ctl_history_parts *p, const struct order_segment *a)
{
	struct stretch best = {0};

	for (unsigned i = 0; i < p->sources; i++) {
		const struct cursor *c = &p->source[i].cursor;

		if (c->segments > 1 && same_segment(c->segment[0], a))
			prefer(&best, (struct stretch){c, 1, c->segments});
	}
	return best;
}

static bool refuse_gap(const struct order_segment *a, const struct order_segment *b)
{
	if (a->start == b->start)
		ctl_fail("the cursors do not join: two of them have different mixes from position "
			 "%" PRIu64 " on; leave out cursors of another run, and cursors saved "
			 "before the run was restarted there",
			a->start);
	else
		ctl_fail("the cursors do not join: the mix from %" PRIu64
			 " does not lead to the one from %" PRIu64
			 "; add a cursor saved between them, or leave out cursors of another run",
			a->start, b->start);
	return false;
}

static bool join(struct ctl_history_parts *p)
{
	qsort(p->source, p->sources, sizeof(*p->source), by_start);
	for (unsigned at = 0, to; at < p->sources; at = to) {
		const struct order_segment *a = p->source[at].cursor.segment[0], *b = NULL;
		struct stretch way = {0};

		for (to = at + 1;
			to < p->sources && same_segment(p->source[to].cursor.segment[0], a);)
			to++;
		if (to < p->sources)
			b = p->source[to].cursor.segment[0];
		push(p, a);
		if (!b)
			way = announced(p, a);
		else if (!leads_to(a, b)) {
			way = between(p, a, b);
			if (!way.of)
				return refuse_gap(a, b);
		}
		for (uint32_t i = way.from; i < way.to; i++)
			push(p, way.of->segment[i]);
	}
	return true;
}

/* ---- the log ---- */

static void forget(struct source *source)
{
	cursor_free(&source->cursor);
	free(source->path);
	*source = (struct source){0};
}

/* Forgets the first @n sources. */
static void forget_first(struct ctl_history_parts *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		forget(&p->source[i]);
	p->sources -= n;
	memmove(p->source, p->source + n, p->sources * sizeof(*p->source));
}

static void report_end(const struct source *source)
{
	ctl_fail("the mixes before position %" PRIu64
		 " are unknown; the mix log is used from %s on",
		source->cursor.segment[0]->start, source->path);
}

/* Takes the files in order. If one does not follow from the earlier ones, those are dropped. */
static void replay(struct ctl_history_parts *p)
{
	unsigned first = 0;

	for (unsigned i = 0; i < p->sources; i++) {
		const struct cursor *c = &p->source[i].cursor;
		bool known = p->segments > 0 && p->segment[0]->start < c->segment[0]->start;

		while (p->segments > 0 && !leads_to(p->segment[p->segments - 1], c->segment[0]))
			p->segments--;
		if (p->segments == 0)
			first = i;
		if (p->segments == 0 && known) {
			ctl_fail("%s: this mix does not follow from those logged before it",
				p->source[i].path);
			report_end(&p->source[i]);
		}
		for (uint32_t s = 0; s < c->segments; s++)
			push(p, c->segment[s]);
	}
	forget_first(p, first);
}

/*
 * Reads the newest file first, back to one whose mix begins the run: older files do not count. It
 * stops at a file that cannot be read. If that is the newest file, it fails: no other has its mix.
 */
static bool read_files(struct ctl_history_parts *p, const char *directory, struct dirent **entry,
	unsigned n, const struct cursor *begin)
{
	unsigned at = n;

	while (at > 0 && (at == n || p->source[at].cursor.segment[0]->start > 0)) {
		struct source *source = &p->source[at - 1];

		if (asprintf(&source->path, "%s/%s", directory, entry[at - 1]->d_name) < 0) {
			source->path = NULL;
			ctl_fail(PHRASE_MEMORY);
			return false;
		}
		if (!ctl_cursor_read(&source->cursor, source->path, begin)) {
			if (at == n)
				return false;
			report_end(&p->source[at]);
			break;
		}
		at--;
	}
	forget_first(p, at);
	return true;
}

static bool read_log(struct ctl_history *h, const struct ctl_stream *s, const char *run)
{
	struct ctl_history_parts *p = h->parts;
	struct run_log log;
	bool done = false;

	if (!run_log_find(&log, s, run))
		return false;
	memcpy(h->run, log.run, sizeof(h->run));
	p->source = calloc((size_t)log.n, sizeof(*p->source));
	if (p->source) {
		p->sources = (unsigned)log.n;
		done = read_files(p, log.directory, log.entry, p->sources, &s->stream->begin);
	} else {
		ctl_fail(PHRASE_MEMORY);
	}
	run_log_free(&log);
	return done;
}

/* ---- all sources ---- */

static bool read_cursors(struct ctl_history_parts *p, const char *const *paths, unsigned n,
	const struct cursor *begin)
{
	p->source = calloc(n, sizeof(*p->source));
	if (!p->source) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	for (; p->sources < n; p->sources++) {
		struct source *source = &p->source[p->sources];

		source->given = p->sources;
		source->path = strdup(paths[p->sources]);
		if (!source->path)
			ctl_fail(PHRASE_MEMORY);
		if (!source->path || !ctl_cursor_read(&source->cursor, paths[p->sources], begin)) {
			forget(source);
			return false;
		}
	}
	return true;
}

static bool read_config(struct ctl_history_parts *p, const struct cursor *begin)
{
	p->source = calloc(1, sizeof(*p->source));
	if (p->source && cursor_copy(&p->source->cursor, begin)) {
		p->sources = 1;
		return true;
	}
	ctl_fail(PHRASE_MEMORY);
	return false;
}

/* Is a segment of this cursor among the joined ones? */
static bool is_used(const struct ctl_history_parts *p, const struct source *source)
{
	for (uint32_t i = 0; i < source->cursor.segments; i++)
		for (uint32_t s = 0; s < p->segments; s++)
			if (p->segment[s] == source->cursor.segment[i])
				return true;
	return false;
}

static bool choose_widest(struct ctl_history *h)
{
	struct ctl_history_parts *p = h->parts;
	const struct source *widest;
	unsigned kept = 0;

	/* A mix that a restart has undone may have had other datasets. */
	for (unsigned i = 0; i < p->sources; i++)
		if (is_used(p, &p->source[i])) {
			struct source one = p->source[i];

			p->source[i] = p->source[kept];
			p->source[kept++] = one;
		}
	for (unsigned i = kept; i < p->sources; i++)
		forget(&p->source[i]);
	p->sources = kept;
	widest = &p->source[0];
	for (unsigned i = 1; i < p->sources; i++)
		if (p->source[i].cursor.datasets > widest->cursor.datasets)
			widest = &p->source[i];
	h->widest = &widest->cursor;
	for (unsigned i = 0; i < p->sources; i++)
		for (uint32_t d = 0; d < p->source[i].cursor.datasets; d++)
			if (strcmp(p->source[i].cursor.dataset[d].name,
				    h->widest->dataset[d].name) != 0) {
				ctl_fail("%s: dataset %u is %s, but in %s it is %s; the cursors "
					 "are not of one run",
					p->source[i].path, d, p->source[i].cursor.dataset[d].name,
					widest->path, h->widest->dataset[d].name);
				return false;
			}
	return true;
}

static bool allocate_segments(struct ctl_history_parts *p)
{
	size_t n = 0;

	for (unsigned i = 0; i < p->sources; i++)
		n += p->source[i].cursor.segments;
	assert(n > 0); /* there is a cursor, and every cursor has a segment */
	p->segment = calloc(n, sizeof(const struct order_segment *));
	if (!p->segment)
		ctl_fail(PHRASE_MEMORY);
	return p->segment != NULL;
}

static bool open_parts(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run)
{
	struct ctl_history_parts *p = h->parts;

	if (!run && !(n > 0 ? read_cursors(p, paths, n, &s->stream->begin)
			    : read_config(p, &s->stream->begin)))
		return false;
	if (run && !read_log(h, s, run))
		return false;
	if (!allocate_segments(p))
		return false;
	if (!run)
		return join(p);
	replay(p);
	return true;
}

bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run)
{
	*h = (struct ctl_history){.parts = calloc(1, sizeof(*h->parts))};
	if (!h->parts)
		ctl_fail(PHRASE_MEMORY);
	if (!h->parts || !open_parts(h, s, paths, n, run) || !choose_widest(h)) {
		ctl_history_close(h);
		return false;
	}
	h->order = cursor_order(h->widest);
	h->order.segment = h->parts->segment;
	h->order.segments = h->parts->segments;
	return true;
}

void ctl_history_close(struct ctl_history *h)
{
	for (unsigned i = 0; h->parts && i < h->parts->sources; i++)
		forget(&h->parts->source[i]);
	if (h->parts) {
		free(h->parts->source);
		free(h->parts->segment);
	}
	free(h->parts);
	*h = (struct ctl_history){0};
}
