#include "client/ctl/offline/proof_lives.h"

#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
	const struct record_section *x = *(const struct record_section *const *)a,
				    *y = *(const struct record_section *const *)b;

	if (x->begin.time_ns != y->begin.time_ns)
		return x->begin.time_ns < y->begin.time_ns ? -1 : 1;
	return x < y ? -1 : x > y;
}

static bool same_life(const struct proof_life *l, const struct record_begin *b)
{
	return l->position == b->position && l->world == b->world &&
	       l->micro_batch == b->micro_batch && l->ranks < b->world;
}

struct proof_life *proof_lives(const struct record_peer *p, size_t *n)
{
	const struct record_section **section = calloc(p->sections, sizeof(*section));
	struct proof_life *life = calloc(p->sections, sizeof(*life));
	uint64_t reached = 0;

	*n = 0;
	for (size_t i = 0; section && i < p->sections; i++)
		section[i] = &p->section[i];
	if (section)
		qsort(section, p->sections, sizeof(*section), by_time);
	for (size_t i = 0; section && life && i < p->sections; i++) {
		const struct record_begin *b = &section[i]->begin;

		if (*n == 0 || !same_life(&life[*n - 1], b))
			life[(*n)++] = (struct proof_life){b->time_ns, b->position, b->left,
				b->world, b->micro_batch, reached, 0};
		life[*n - 1].ranks++;
		if (section[i]->top > reached)
			reached = section[i]->top;
	}
	if (!section) {
		free(life);
		life = NULL;
	}
	free(section);
	return life;
}
