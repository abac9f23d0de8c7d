/*
 * The mixes of a run, joined from several cursors.
 *
 * A cursor contains its current segment and the pending ones. Two segments follow each other only
 * if the counts and roundings of the second are those that the first leads to. So a gap between
 * cursors is seen, and so is a mix that was replaced before it acted.
 *
 * Cursors named one by one come in any order and are joined by this rule alone. tokend's mix log
 * has an order, so it also covers a run that was restarted from an older checkpoint: from where a
 * later file's current segment begins, that file replaces what earlier ones announced.
 */
#include "client/ctl/offline/history.h"

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "proto/wire.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cursor of the run, and its file. */
struct word {
	struct cursor cursor;
	char *path;
	unsigned given; /* its number among the arguments */
};

struct ctl_history_parts {
	struct word *word;
	unsigned words;
	const struct order_segment **segment; /* the joined ones, borrowed from the words */
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

/* Ascending starts of the current segments, otherwise as they were given. */
static int by_start(const void *a, const void *b)
{
	const struct word *x = a, *y = b;
	uint64_t from_x = x->cursor.segment[0]->start, from_y = y->cursor.segment[0]->start;

	if (from_x != from_y)
		return from_x < from_y ? -1 : 1;
	return x->given < y->given ? -1 : x->given > y->given;
}

/* Index of @segment among those of @cursor, or their number. */
static uint32_t find(const struct cursor *cursor, const struct order_segment *segment)
{
	uint32_t i = 0;

	while (i < cursor->segments && !same_segment(cursor->segment[i], segment))
		i++;
	return i;
}

/* Some of one cursor's pending segments: those after a segment that all cursors agree on. */
struct stretch {
	const struct cursor *of;
	uint32_t from, to;
};

/* Replaces *@best by @found, unless the cursor of @best is from later in the run. */
static void prefer(struct stretch *best, struct stretch found)
{
	if (!best->of || found.of->next >= best->of->next)
		*best = found;
}

/* The segments between @a and @b, both of which have acted, from a cursor that announced them. */
static struct stretch between(const struct ctl_history_parts *p, const struct order_segment *a,
	const struct order_segment *b)
{
	struct stretch best = {0};

	for (unsigned i = 0; i < p->words; i++) {
		const struct cursor *c = &p->word[i].cursor;
		uint32_t at = find(c, a), to = at + 1;

		while (to < c->segments && c->segment[to]->start < b->start &&
			!leads_to(c->segment[to], b))
			to++;
		if (to < c->segments && c->segment[to]->start < b->start)
			prefer(&best, (struct stretch){c, at + 1, to + 1});
	}
	return best;
}

/* What is announced to follow @a, the last one that has acted. */
static struct stretch announced(const struct ctl_history_parts *p, const struct order_segment *a)
{
	struct stretch best = {0};

	for (unsigned i = 0; i < p->words; i++) {
		const struct cursor *c = &p->word[i].cursor;

		if (c->segments > 1 && same_segment(c->segment[0], a))
			prefer(&best, (struct stretch){c, 1, c->segments});
	}
	return best;
}

static bool refuse_gap(const struct order_segment *a, const struct order_segment *b)
{
	if (a->start == b->start)
		ctl_fail("the cursors do not join: two of them have different mixes from position "
			 "%" PRIu64 " on; leave out those of another run, or from before it was "
			 "restarted there",
			a->start);
	else
		ctl_fail("the cursors do not join: the mix from %" PRIu64
			 " does not lead to the one from %" PRIu64
			 "; give a cursor saved between them, or leave out those of another run",
			a->start, b->start);
	return false;
}

static bool join(struct ctl_history_parts *p)
{
	qsort(p->word, p->words, sizeof(*p->word), by_start);
	for (unsigned at = 0, to; at < p->words; at = to) {
		const struct order_segment *a = p->word[at].cursor.segment[0], *b = NULL;
		struct stretch way = {0};

		for (to = at + 1; to < p->words && same_segment(p->word[to].cursor.segment[0], a);)
			to++;
		if (to < p->words)
			b = p->word[to].cursor.segment[0];
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

static void forget(struct word *word)
{
	cursor_free(&word->cursor);
	free(word->path);
	*word = (struct word){0};
}

/* Drops the first @n. */
static void forget_first(struct ctl_history_parts *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		forget(&p->word[i]);
	p->words -= n;
	memmove(p->word, p->word + n, p->words * sizeof(*p->word));
}

static void say_end(const struct word *word)
{
	ctl_fail("looking back ends at position %" PRIu64 ", where the first mix of %s begins",
		word->cursor.segment[0]->start, word->path);
}

/* Takes the files in order; if one does not follow from those before it, those are dropped. */
static void replay(struct ctl_history_parts *p)
{
	unsigned first = 0;

	for (unsigned i = 0; i < p->words; i++) {
		const struct cursor *c = &p->word[i].cursor;
		bool known = p->segments > 0 && p->segment[0]->start < c->segment[0]->start;

		while (p->segments > 0 && !leads_to(p->segment[p->segments - 1], c->segment[0]))
			p->segments--;
		if (p->segments == 0)
			first = i;
		if (p->segments == 0 && known) {
			ctl_fail("%s: its mix does not follow from those logged before it",
				p->word[i].path);
			say_end(&p->word[i]);
		}
		for (uint32_t s = 0; s < c->segments; s++)
			push(p, c->segment[s]);
	}
	forget_first(p, first);
}

/* The number in a name like 000001.cursor, 0 if it is none. */
static uint64_t number_of(const char *name)
{
	size_t digits = strspn(name, "0123456789");
	char text[21];
	uint64_t number;

	if (digits < 6 || digits >= sizeof(text) || strcmp(name + digits, ".cursor") != 0)
		return 0;
	memcpy(text, name, digits);
	text[digits] = 0;
	return ctl_parse_number(text, &number) ? number : 0;
}

static int is_numbered(const struct dirent *e)
{
	return number_of(e->d_name) > 0;
}

static int by_number(const struct dirent **a, const struct dirent **b)
{
	uint64_t x = number_of((*a)->d_name), y = number_of((*b)->d_name);

	return x < y ? -1 : x > y;
}

/*
 * Reads the newest first, down to one whose mix begins the run: nothing before it counts. Looking
 * back ends at a file that cannot be read. It must not be the newest, which nothing can replace.
 */
static bool read_files(struct ctl_history_parts *p, const char *directory, struct dirent **entry,
	unsigned n, const struct cursor *begin)
{
	unsigned at = n;

	while (at > 0 && (at == n || p->word[at].cursor.segment[0]->start > 0)) {
		struct word *word = &p->word[at - 1];

		if (asprintf(&word->path, "%s/%s", directory, entry[at - 1]->d_name) < 0) {
			word->path = NULL;
			ctl_fail("out of memory");
			return false;
		}
		if (!ctl_cursor_read(&word->cursor, word->path, begin)) {
			if (at == n)
				return false;
			say_end(&p->word[at]);
			break;
		}
		at--;
	}
	forget_first(p, at);
	return true;
}

/* A private daemon may have kept the log with its user's state. -1 with errno: *@directory is as it
 * was. */
static int scan_own(
	const struct ctl_stream *s, const char *run, char **directory, struct dirent ***entry)
{
	char *state = config_user_state_dir(s->config), *own = NULL;
	int n = -1;

	if (state && asprintf(&own, "%s/%s/%s/mixes", state, s->stream->config->name, run) >= 0)
		n = scandir(own, entry, is_numbered, by_number);
	free(state);
	if (n < 0) {
		free(own);
		errno = ENOENT;
		return -1;
	}
	free(*directory);
	*directory = own;
	return n;
}

static bool read_log(struct ctl_history_parts *p, const struct ctl_stream *s, const char *run)
{
	struct dirent **entry = NULL;
	char *directory = NULL;
	bool done = false;

	if (!wire_name_ok(run)) {
		ctl_fail("--run %s: is no name of a run", run);
		return false;
	}
	if (asprintf(&directory, "%s/%s/%s/mixes", s->config->state_dir, s->stream->config->name,
		    run) < 0) {
		ctl_fail("out of memory");
		return false;
	}
	int n = scandir(directory, &entry, is_numbered, by_number);

	if (n < 0 && errno == ENOENT)
		n = scan_own(s, run, &directory, &entry);
	if (n < 0)
		ctl_fail("--run %s: %s: %s; tokend writes the log of mixes there when a run "
			 "attaches",
			run, directory, strerror(errno));
	else if (n == 0)
		ctl_fail("--run %s: %s: holds no log of mixes", run, directory);
	else if (!(p->word = calloc((size_t)n, sizeof(*p->word))))
		ctl_fail("out of memory");
	else {
		p->words = (unsigned)n;
		done = read_files(p, directory, entry, (unsigned)n, &s->stream->begin);
	}
	for (int i = 0; i < n; i++)
		free(entry[i]);
	free(entry);
	free(directory);
	return done;
}

/* ---- both ---- */

static bool read_cursors(struct ctl_history_parts *p, const char *const *paths, unsigned n,
	const struct cursor *begin)
{
	p->word = calloc(n, sizeof(*p->word));
	if (!p->word) {
		ctl_fail("out of memory");
		return false;
	}
	for (; p->words < n; p->words++) {
		struct word *word = &p->word[p->words];

		word->given = p->words;
		word->path = strdup(paths[p->words]);
		if (!word->path)
			ctl_fail("out of memory");
		if (!word->path || !ctl_cursor_read(&word->cursor, paths[p->words], begin)) {
			forget(word);
			return false;
		}
	}
	return true;
}

static bool read_config(struct ctl_history_parts *p, const struct cursor *begin)
{
	p->word = calloc(1, sizeof(*p->word));
	if (p->word && cursor_copy(&p->word->cursor, begin)) {
		p->words = 1;
		return true;
	}
	ctl_fail("out of memory");
	return false;
}

/* Is a segment of this cursor among the joined ones? */
static bool is_used(const struct ctl_history_parts *p, const struct word *word)
{
	for (uint32_t i = 0; i < word->cursor.segments; i++)
		for (uint32_t s = 0; s < p->segments; s++)
			if (p->segment[s] == word->cursor.segment[i])
				return true;
	return false;
}

static bool choose_widest(struct ctl_history *h)
{
	struct ctl_history_parts *p = h->parts;
	const struct word *widest;
	unsigned kept = 0;

	/* A mix that was undone by a restart may have had other datasets. */
	for (unsigned i = 0; i < p->words; i++)
		if (is_used(p, &p->word[i])) {
			struct word word = p->word[i];

			p->word[i] = p->word[kept];
			p->word[kept++] = word;
		}
	for (unsigned i = kept; i < p->words; i++)
		forget(&p->word[i]);
	p->words = kept;
	widest = &p->word[0];
	for (unsigned i = 1; i < p->words; i++)
		if (p->word[i].cursor.datasets > widest->cursor.datasets)
			widest = &p->word[i];
	h->widest = &widest->cursor;
	for (unsigned i = 0; i < p->words; i++)
		for (uint32_t d = 0; d < p->word[i].cursor.datasets; d++)
			if (strcmp(p->word[i].cursor.dataset[d].name, h->widest->dataset[d].name) !=
				0) {
				ctl_fail("%s: its dataset %u is %s, that of %s is %s: they are not "
					 "of one run",
					p->word[i].path, d, p->word[i].cursor.dataset[d].name,
					widest->path, h->widest->dataset[d].name);
				return false;
			}
	return true;
}

static bool allocate_segments(struct ctl_history_parts *p)
{
	size_t n = 0;

	for (unsigned i = 0; i < p->words; i++)
		n += p->word[i].cursor.segments;
	assert(n > 0); /* a cursor has one at least, and there is a cursor at least */
	p->segment = calloc(n, sizeof(const struct order_segment *));
	if (!p->segment)
		ctl_fail("out of memory");
	return p->segment != NULL;
}

static bool open_parts(struct ctl_history_parts *p, const struct ctl_stream *s,
	const char *const *paths, unsigned n, const char *run)
{
	if (!run && !(n > 0 ? read_cursors(p, paths, n, &s->stream->begin)
			    : read_config(p, &s->stream->begin)))
		return false;
	if (run && !read_log(p, s, run))
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
		ctl_fail("out of memory");
	if (!h->parts || !open_parts(h->parts, s, paths, n, run) || !choose_widest(h)) {
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
	for (unsigned i = 0; h->parts && i < h->parts->words; i++)
		forget(&h->parts->word[i]);
	if (h->parts) {
		free(h->parts->word);
		free(h->parts->segment);
	}
	free(h->parts);
	*h = (struct ctl_history){0};
}
