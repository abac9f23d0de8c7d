/* Judges which rows count, by the rules in proto/record.h. */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <stdlib.h>
#include <string.h>

/* Compares by the first of the @n numbers that differ. */
static int compare(const uint64_t *x, const uint64_t *y, size_t n)
{
	size_t i = 0;

	while (i + 1 < n && x[i] == y[i])
		i++;
	return x[i] < y[i] ? -1 : x[i] > y[i];
}

/* Of a peer and pass, by time. */
static int by_time(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;

	return compare((uint64_t[]){x->begin.peer, x->pass, x->begin.time_ns, x->file, x->entry},
		(uint64_t[]){y->begin.peer, y->pass, y->begin.time_ns, y->file, y->entry}, 5);
}

/* Of a rank of a generation, by time. */
static int by_rank(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int order = compare((uint64_t[]){x->generation, x->begin.rank},
		(uint64_t[]){y->generation, y->begin.rank}, 2);

	return order ? order : by_time(a, b);
}

static int by_place(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;

	return compare((uint64_t[]){x->file, x->entry}, (uint64_t[]){y->file, y->entry}, 2);
}

/* ---- generations ---- */

static bool on_grid(const struct record_generation *g, const struct record_begin *b)
{
	uint64_t apart =
		b->position > g->position ? b->position - g->position : g->position - b->position;

	return g->world == b->world && g->micro_batch == b->micro_batch &&
	       apart % (g->world * g->micro_batch) == 0;
}

/* Is @rank in generation @g, according to the first @n sections? */
static bool is_member(const struct record_peer *p, size_t n, size_t g, uint64_t rank)
{
	for (size_t i = 0; i < n; i++)
		if (p->section[i].generation == g && p->section[i].begin.rank == rank)
			return true;
	return false;
}

/* The older generation that section @i joins late; p->generations if there is none. */
static size_t find_late(const struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;

	for (size_t g = p->generations; g-- > 0;)
		if (p->generation[g].world == b->world &&
			p->generation[g].micro_batch == b->micro_batch &&
			p->generation[g].position == b->position)
			return is_member(p, i, g, b->rank) ? p->generations : g;
	return p->generations;
}

/*
 * Section @i opens a generation at @b's position. Earlier sections at that position may have been
 * taken for late members of an older generation. If they are newer than the newest generation, they
 * belong to this one: moves them.
 */
static void gather_early(struct record_peer *p, size_t i, const struct record_begin *b)
{
	size_t newest = p->generations - 1;

	for (size_t s = i; p->generations > 0 && s-- > p->generation[newest].opener + 1;) {
		const struct record_begin *early = &p->section[s].begin;

		if (p->section[s].generation != newest && early->position == b->position &&
			early->world == b->world && early->micro_batch == b->micro_batch)
			p->section[s].generation = (uint32_t)p->generations;
	}
}

/* Sets the generation of section @i; all sections before it have theirs. */
static bool place_section(struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;
	struct record_generation *newest =
		p->generations ? &p->generation[p->generations - 1] : NULL;
	size_t g;

	if (newest && on_grid(newest, b)) {
		p->section[i].generation = (uint32_t)(p->generations - 1);
		if (b->position < newest->position)
			newest->position = b->position;
		return true;
	}
	g = find_late(p, i);
	p->section[i].generation = (uint32_t)g;
	if (g < p->generations)
		return true;
	if (!ctl_grow((void **)&p->generation, p->generations, sizeof(*p->generation)))
		return false;
	gather_early(p, i, b);
	p->generation[p->generations++] = (struct record_generation){.position = b->position,
		.world = b->world,
		.micro_batch = b->micro_batch,
		.opener = i};
	return true;
}

/* Sets the position from which on the rows of each section are void, and the end of those that
 * count.
 */
static void set_limits(struct record_peer *p)
{
	uint64_t limit = UINT64_MAX;

	for (size_t g = p->generations; g-- > 0;) {
		p->generation[g].limit = limit;
		if (p->generation[g].position < limit)
			limit = p->generation[g].position;
	}
	qsort(p->section, p->sections, sizeof(*p->section), by_rank);
	for (size_t i = p->sections; i-- > 0;) {
		struct record_section *s = &p->section[i], *later = s + 1;

		s->limit = p->generation[s->generation].limit;
		if (i + 1 == p->sections || later->generation != s->generation ||
			later->begin.rank != s->begin.rank)
			continue;
		if (later->file != s->file && later->begin.position < s->begin.position &&
			later->top < s->top) {
			p->rewound = true;
			p->rewinding = later->file;
			p->voided = s->file;
		}
		if (later->limit < s->limit)
			s->limit = later->limit;
		if (later->begin.position < s->limit)
			s->limit = later->begin.position;
	}
	for (size_t i = 0; i < p->sections; i++) {
		struct record_section *s = &p->section[i];

		s->last = s->top < s->limit ? s->top : s->limit;
	}
	qsort(p->section, p->sections, sizeof(*p->section), by_place);
}

/* ---- what the sections of a peer tell, by time ---- */

/* Section @i is the newest: adds its order to p->force. */
static bool add_force(struct record_peer *p, size_t i)
{
	const struct record_section *s = &p->section[i];

	if (s->generation + UINT64_C(1) < p->generations) /* a late member */
		return true;
	while (p->forces > 0 && p->force[p->forces - 1].from >= s->begin.position)
		p->forces--;
	if (p->forces > 0 && p->force[p->forces - 1].order == s->order)
		return true;
	if (!ctl_grow((void **)&p->force, p->forces, sizeof(*p->force)))
		return false;
	p->force[p->forces++] = (struct record_force){s->begin.position, s->order, s->file};
	return true;
}

const struct record_force *records_in_force(const struct record_peer *p, uint64_t position)
{
	size_t lo = 0, hi = p->forces;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (p->force[mid].from <= position)
			lo = mid;
		else
			hi = mid;
	}
	return &p->force[lo];
}

/* Section @i is the newest: adds it to the last life, or another one. *@reached: after the highest
 * position of those before it. */
static bool add_life(struct record_peer *p, size_t i, uint64_t *reached)
{
	const struct record_begin *b = &p->section[i].begin;
	struct record_life *last = p->lives ? &p->life[p->lives - 1] : NULL;

	if (!last || last->begin.position != b->position || last->begin.world != b->world ||
		last->begin.micro_batch != b->micro_batch || last->ranks == b->world) {
		if (!ctl_grow((void **)&p->life, p->lives, sizeof(*p->life)))
			return false;
		last = &p->life[p->lives++];
		*last = (struct record_life){*b, *reached, 0};
	}
	last->ranks++;
	if (p->section[i].top > *reached)
		*reached = p->section[i].top;
	return true;
}

/* The sections are sorted by time. */
static bool judge(struct record_peer *p)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < p->sections; i++)
		if (!place_section(p, i) || !add_force(p, i) || !add_life(p, i, &reached))
			return false;
	set_limits(p);
	return true;
}

/* ---- passes ---- */

/* The last pass that all ranks have begun. -1: none, and the first section begins a pass. */
struct common {
	int64_t pass;
	uint64_t *joined; /* by pass: how often it was begun as another pass */
};

static uint64_t number_pass(struct common *c, const struct record_section *s, uint64_t former)
{
	int64_t pass = former ? (int64_t)former - 1 : c->pass;

	pass += s->again;
	if (pass < 0)
		pass = 0;
	if (s->again)
		c->joined[pass]++;
	while (c->joined[c->pass + 1] >= s->begin.world)
		c->pass++;
	return (uint64_t)pass;
}

/*
 * The sections are sorted by time for each peer. A later section of a file stays in that file's
 * pass, or begins the next one. The first section of a new process joins the last pass that all
 * ranks have begun.
 */
static bool number_passes(struct records *r)
{
	/* by file: its current pass + 1; 0: none yet */
	uint64_t *of_file = calloc(r->files + 1, sizeof(*of_file));
	struct common common = {.joined = calloc(r->sections + 2, sizeof(*common.joined))};

	for (size_t i = 0; of_file && common.joined && i < r->sections; i++) {
		struct record_section *s = &r->section[i];

		if (i == 0 || s->begin.peer != s[-1].begin.peer) {
			common.pass = s->again ? -1 : 0;
			memset(common.joined, 0, (r->sections + 2) * sizeof(*common.joined));
			memset(of_file, 0, r->files * sizeof(*of_file));
		}
		s->pass = number_pass(&common, s, of_file[s->file]);
		of_file[s->file] = s->pass + 1;
		if (s->pass >= r->passes)
			r->passes = s->pass + 1;
	}

	bool numbered = of_file && common.joined;

	free(of_file);
	free(common.joined);
	return numbered || ctl_error(PHRASE_MEMORY);
}

static bool split_peers(struct records *r)
{
	qsort(r->section, r->sections, sizeof(*r->section), by_time);
	if (!number_passes(r))
		return false;
	qsort(r->section, r->sections, sizeof(*r->section), by_time);
	for (size_t i = 0; i < r->sections; i++) {
		struct record_section *s = &r->section[i];
		const struct record_peer *last = r->peers ? &r->peer[r->peers - 1] : NULL;

		if (!last || last->peer != s->begin.peer || last->pass != s->pass) {
			if (!ctl_grow((void **)&r->peer, r->peers, sizeof(*r->peer)))
				return false;
			r->peer[r->peers++] = (struct record_peer){
				.peer = s->begin.peer, .pass = s->pass, .section = s};
		}
		r->peer[r->peers - 1].sections++;
	}
	return true;
}

bool records_judge(struct records *r)
{
	if (!split_peers(r))
		return false;
	for (size_t i = 0; i < r->peers; i++)
		if (!judge(&r->peer[i]))
			return false;
	return true;
}
