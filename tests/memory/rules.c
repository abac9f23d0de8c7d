/*
 * RC11's rules, for a graph to which one event is added. sb ∪ rf is acyclic because events are
 * added in its order.
 *
 *   sw   = [release]; ([fence]; sb)?; rs; rf; [≥ relaxed]; (sb; [fence])?; [acquire]
 *   rs   = [write]; (rf; read-modify-write)*
 *   hb   = (sb ∪ sw)+
 *   coherence    hb; eco? is irreflexive, with eco = (rf ∪ mo ∪ fr)+ and fr = rf⁻¹; mo
 *   atomicity    nothing is in mo between a read-modify-write and what it reads from
 *   scb  = sb ∪ sb|≠loc; hb; sb|≠loc ∪ hb|loc ∪ mo ∪ fr
 *   SC           [SC]; scb; [SC] is acyclic; no fence is seq_cst
 */
#include "tests/memory/graph.h"

#include <assert.h>

static bool acquires(int order)
{
	return order == memory_order_acquire || order == memory_order_consume ||
	       order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(int order)
{
	return order == memory_order_release || order == memory_order_acq_rel ||
	       order == memory_order_seq_cst;
}

static uint64_t value_at(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;

	__builtin_memcpy(&value, at, bytes);
	return value;
}

unsigned graph_place(struct graph *g, const struct operation *o)
{
	unsigned p = 0;

	while (p < g->places && g->place[p].at != o->at)
		p++;
	if (p < g->places)
		return p;
	assert(p < PLACES && g->events < EVENTS);
	/* The initial value, which happens before everything. */
	g->event[g->events] = (struct event){.thread = NOBODY,
		.writes = true,
		.place = (uint8_t)p,
		.wrote = value_at(o->at, o->bytes)};
	g->place[p] = (struct place){.at = o->at, .count = 1, .order = {(uint8_t)g->events}};
	g->events++;
	g->places++;
	return p;
}

/* What happens before the next event of @thread. */
static set past(const struct graph *g, unsigned thread)
{
	const struct thread_view *t = &g->thread[thread];

	return t->count ? g->event[t->last].before | SET(t->last) : 0;
}

unsigned graph_knows(const struct graph *g, unsigned thread, unsigned of)
{
	unsigned e, most = 0;

	SET_EACH(e, past(g, thread))
	if (g->event[e].thread == of && g->event[e].number >= most)
		most = g->event[e].number + 1u;
	return most;
}

/* The least index in mo that coherence allows @thread to read: that of the last write that happens
 * before it, or that was read by something that does. */
static unsigned least_index(const struct graph *g, unsigned thread, const struct place *place)
{
	set known = past(g, thread), read = 0;
	unsigned e, least = 0;

	SET_EACH(e, known)
	if (g->event[e].reads && &g->place[g->event[e].place] == place)
		read |= SET(g->event[e].from);
	for (unsigned i = 0; i < place->count; i++)
		if ((known | read) & SET(place->order[i]))
			least = i;
	return least;
}

/* Is the write at @index a read-modify-write? Then nothing comes directly before it. */
static bool follows_directly(const struct graph *g, const struct place *place, unsigned index)
{
	return index < place->count && g->event[place->order[index]].reads;
}

static bool writes(const struct operation *o)
{
	return o->kind == STORE || o->kind == EXCHANGE;
}

unsigned graph_choices(const struct graph *g, unsigned thread, const struct operation *o,
	struct choice choices[WRITES])
{
	unsigned n = 0, p = 0;

	if (o->kind == FENCE) {
		choices[0] = (struct choice){0};
		return 1;
	}
	while (g->place[p].at != o->at)
		p++;

	const struct place *place = &g->place[p];

	for (unsigned i = least_index(g, thread, place); i < place->count; i++) {
		uint64_t value = g->event[place->order[i]].wrote;

		if (o->kind != STORE && o->await && value < o->await)
			continue;
		if (writes(o) && follows_directly(g, place, i + 1))
			continue;
		choices[n++] = (struct choice){.from = place->order[i], .index = (uint8_t)(i + 1)};
	}
	return n;
}

/* ---- seq_cst ---- */

/* The writes before @e in mo. */
static set mo_before(const struct graph *g, unsigned e)
{
	const struct place *place = &g->place[g->event[e].place];
	set before = 0;

	for (unsigned i = 0; i < place->count && place->order[i] != e; i++)
		before |= SET(place->order[i]);
	return before;
}

/* The reads that read from one of @writes, except @e. */
static set readers(const struct graph *g, set writes, unsigned e)
{
	set found = 0;

	for (unsigned i = 0; i < g->events; i++)
		if (i != e && g->event[i].reads && (writes & SET(g->event[i].from)))
			found |= SET(i);
	return found;
}

static set scb_before(const struct graph *g, unsigned e)
{
	set before = g->event[e].scb;

	if (g->event[e].writes) {
		set mo = mo_before(g, e);

		before |= mo | readers(g, mo, e);
	}
	return before;
}

static bool sc_is_acyclic(const struct graph *g)
{
	set before[EVENTS], left = g->sc;
	unsigned e;

	SET_EACH(e, g->sc)
	before[e] = scb_before(g, e);
	for (bool removed = true; left && removed;) {
		removed = false;
		SET_EACH(e, left)
		if (!(before[e] & left)) {
			left &= ~SET(e);
			removed = true;
		}
	}
	return left == 0;
}

/* ---- adding ---- */

static void write_value(struct graph *g, unsigned e, const struct operation *o, unsigned index)
{
	struct place *place = &g->place[g->event[e].place];

	assert(place->count < WRITES);
	for (unsigned i = place->count++; i > index; i--)
		place->order[i] = place->order[i - 1];
	place->order[index] = (uint8_t)e;
	if (index == place->count - 1u)
		__builtin_memcpy(o->at, &g->event[e].wrote, o->bytes);
}

/* sb, hb and what derives from them. */
static void relate(struct graph *g, unsigned e)
{
	struct event *event = &g->event[e];
	struct thread_view *t = &g->thread[event->thread];
	unsigned b;

	event->before = past(g, event->thread);
	event->sequence = t->count ? g->event[t->last].sequence | SET(t->last) : 0;
	if (event->reads && acquires(event->order))
		event->before |= g->event[event->from].released;
	else if (event->reads)
		t->unfenced |= g->event[event->from].released;
	if (event->fence && acquires(event->order))
		event->before |= t->unfenced;
	if (event->fence && releases(event->order))
		t->fenced = event->before | SET(e);
	if (event->writes)
		event->released = (releases(event->order) ? event->before | SET(e) : t->fenced) |
				  (event->reads ? g->event[event->from].released : 0);
	SET_EACH(b, event->sequence)
	if (event->fence || g->event[b].fence || g->event[b].place != event->place)
		event->elsewhere |= SET(b);
	SET_EACH(b, event->before)
	event->hop |= g->event[b].elsewhere;
	event->scb = event->sequence;
	SET_EACH(b, event->elsewhere)
	event->scb |= g->event[b].hop;
	SET_EACH(b, event->before)
	if (!event->fence && !g->event[b].fence && g->event[b].place == event->place)
		event->scb |= SET(b);
}

bool graph_add(struct graph *g, unsigned thread, struct operation *o, struct choice choice)
{
	struct thread_view *t = &g->thread[thread];
	unsigned e = g->events++;
	struct event *event = &g->event[e];
	uint64_t value = o->kind == FENCE ? 0 : g->event[choice.from].wrote;

	assert(e < EVENTS && (o->kind != FENCE || o->order != memory_order_seq_cst));
	*event = (struct event){
		.thread = (uint8_t)thread,
		.number = t->count,
		.fence = o->kind == FENCE,
		.reads = o->kind != FENCE && o->kind != STORE,
		.writes = writes(o),
		.order = o->order,
		.place = o->kind == FENCE ? 0 : g->event[choice.from].place,
		.from = choice.from,
		.read = value,
		.wrote = o->value,
		.site = o->site,
	};
	o->result = value;
	relate(g, e);
	if (event->writes)
		write_value(g, e, o, choice.index);
	if (event->order == memory_order_seq_cst)
		g->sc |= SET(e);
	t->last = (uint8_t)e;
	t->count++;
	return (g->sc & (g->sc - 1)) == 0 || sc_is_acyclic(g);
}
