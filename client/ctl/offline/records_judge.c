/* Judges which rows count, by the rules in proto/record.h. */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* Compares by the first pair of numbers that differ. */
static int compare(const uint64_t (*pair)[2], size_t n)
{
	for (; n > 0; pair++, n--)
		if ((*pair)[0] != (*pair)[1])
			return (*pair)[0] < (*pair)[1] ? -1 : 1;
	return 0;
}

#define ORDER(name, ...)                                                                           \
	static int name(const void *a, const void *b)                                              \
	{                                                                                          \
		const struct record_section *x = a, *y = b;                                        \
		const uint64_t pairs[][2] = {__VA_ARGS__};                                         \
                                                                                                   \
		return compare(pairs, sizeof(pairs) / sizeof(pairs[0]));                           \
	}
#define BY(member)                                                                                 \
	{                                                                                          \
		x->member, y->member                                                               \
	}

ORDER(by_place, BY(file), BY(entry))
ORDER(by_time, BY(begin.peer), BY(begin.time_ns), BY(file), BY(entry))
ORDER(by_pass, BY(begin.peer), BY(pass), BY(begin.time_ns), BY(file), BY(entry))
ORDER(by_rank, BY(generation), BY(begin.rank), BY(begin.time_ns), BY(file), BY(entry))

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

/* Sets the position from which on the rows of each section are void. */
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
}

/* ---- what the sections of a peer tell, by time ---- */

/* Fills in p->force. */
static bool find_forces(struct record_peer *p)
{
	uint32_t newest = 0;

	for (size_t i = 0; i < p->sections; i++) {
		const struct record_section *s = &p->section[i];

		if (s->generation < newest) /* a late member */
			continue;
		newest = s->generation;
		while (p->forces > 0 && p->force[p->forces - 1].from >= s->begin.position)
			p->forces--;
		if (p->forces > 0 && p->force[p->forces - 1].order == s->order)
			continue;
		if (!ctl_grow((void **)&p->force, p->forces, sizeof(*p->force)))
			return false;
		p->force[p->forces++] = (struct record_force){s->begin.position, s->order, s->file};
	}
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

static bool is_of_life(const struct record_life *l, const struct record_begin *b)
{
	return l->begin.position == b->position && l->begin.world == b->world &&
	       l->begin.micro_batch == b->micro_batch && l->ranks < b->world;
}

/* Fills in p->life. */
static bool find_lives(struct record_peer *p)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < p->sections; i++) {
		const struct record_section *s = &p->section[i];

		if (p->lives == 0 || !is_of_life(&p->life[p->lives - 1], &s->begin)) {
			if (!ctl_grow((void **)&p->life, p->lives, sizeof(*p->life)))
				return false;
			p->life[p->lives++] = (struct record_life){s->begin, reached, 0};
		}
		p->life[p->lives - 1].ranks++;
		if (s->top > reached)
			reached = s->top;
	}
	return true;
}

/* Sets the end of the rows of @s that count. */
static bool find_last(const struct records *r, struct record_section *s)
{
	struct record_rows rows;

	s->last = s->top;
	if (s->top <= s->limit)
		return true;
	if (!records_rows(r, s, &rows))
		return false;
	s->last = 0;
	for (uint64_t i = 0; i < s->rows; i++) {
		uint64_t position = le64toh(rows.row[i][0]);

		if (position < s->limit && position >= s->last)
			s->last = position + 1;
	}
	ctl_unmap(rows.mapped, rows.bytes);
	return true;
}

/* The sections are sorted by time. */
static bool judge(const struct records *r, struct record_peer *p)
{
	for (size_t i = 0; i < p->sections; i++)
		if (!place_section(p, i))
			return false;
	if (!find_forces(p) || !find_lives(p))
		return false;
	set_limits(p);
	qsort(p->section, p->sections, sizeof(*p->section), by_place);
	for (size_t i = 0; i < p->sections; i++)
		if (!find_last(r, &p->section[i]))
			return false;
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
	qsort(r->section, r->sections, sizeof(*r->section), by_pass);
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
		if (!judge(r, &r->peer[i]))
			return false;
	return true;
}
