#include "client/ctl/offline/record_order.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/grow.h"
#include "proto/phrases.h"

#include <stdlib.h>
#include <string.h>

/* ---- orders ---- */

/* Sets *@number to that of the dataset called @name. */
static bool find_dataset(struct records *r, const char *name, uint64_t windows, uint32_t *number)
{
	size_t i = 0;

	while (i < r->datasets && strcmp(r->dataset[i].name, name) != 0)
		i++;
	if (i == r->datasets) {
		if (!ctl_grow((void **)&r->dataset, r->datasets, sizeof(*r->dataset)))
			return false;
		r->dataset[r->datasets++] = (struct record_dataset){name, windows};
	}
	*number = (uint32_t)i;
	return true;
}

static void free_order(struct record_order *o)
{
	cursor_free(&o->cursor);
	free(o->map);
	free(o->name);
}

/* Adds @o with its cursor, which the records then own. */
static bool add(struct records *r, struct record_order o)
{
	const struct cursor *c = &o.cursor;
	bool good = ctl_grow((void **)&r->order, r->orders, sizeof(*r->order));

	o.map = calloc(c->datasets, sizeof(const struct dataset *));
	o.name = calloc(c->datasets, sizeof(*o.name));
	if (good && (!o.map || !o.name))
		good = ctl_fail(PHRASE_MEMORY) == CTL_OK;
	for (uint32_t d = 0; d < c->datasets && good; d++)
		good = find_dataset(r, c->dataset[d].name, c->order[d].windows, &o.name[d]);
	if (!good) {
		free_order(&o);
		return false;
	}
	stream_map(r->s->stream, c, o.map);
	o.order = cursor_history(c);
	r->order[r->orders++] = o;
	return true;
}

bool records_order_add(struct records *r, const struct cursor *cursor)
{
	struct record_order o = {0};

	return cursor_copy(&o.cursor, cursor) ? add(r, o) : ctl_fail(PHRASE_MEMORY) == CTL_OK;
}

bool records_order_find(
	struct records *r, const char *path, const void *bytes, size_t n, uint32_t *order)
{
	struct record_order o = {.checksum = order_checksum(bytes, n)};
	struct fault fault;
	bool good;

	for (size_t i = r->orders; i-- > 0;)
		if (r->order[i].checksum == o.checksum) {
			*order = (uint32_t)i;
			return true;
		}
	good = cursor_decode(&o.cursor, bytes, n, &fault);
	if (!good) {
		ctl_fail("%s: damaged: its cursor: %s: %s", path, fault.field, fault.text);
	} else {
		/* A dataset that only a past mix served may have left the config. */
		o.cursor.next = o.cursor.segment[o.cursor.segments - 1]->start;
		good = cursor_belongs(&o.cursor, &r->s->stream->begin, &fault);
		if (!good)
			ctl_fail("%s: recorded from another stream than %s: %s: %s", path,
				r->s->stream->config->name, fault.field, fault.text);
	}
	*order = (uint32_t)r->orders;
	if (good)
		return add(r, o);
	cursor_free(&o.cursor);
	return false;
}

void records_orders_free(struct records *r)
{
	for (size_t i = 0; i < r->orders; i++)
		free_order(&r->order[i]);
	free(r->order);
	free(r->dataset);
}

/* ---- which one is in force ---- */

bool records_force(struct record_peer *p)
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
