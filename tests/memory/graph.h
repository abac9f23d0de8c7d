/* The execution graph, and which graphs are consistent. */
#ifndef TESTS_GRAPH_H
#define TESTS_GRAPH_H

#include "tests/memory/explorer.h"

#include <stdatomic.h>

enum { EVENTS = 128, PLACES = 16, WRITES = 64, NOBODY = 255 };

typedef unsigned __int128 set; /* of events */

#define SET(event) ((set)1 << (event))

static inline unsigned set_first(set s)
{
	return (uint64_t)s ? (unsigned)__builtin_ctzll((uint64_t)s)
			   : 64 + (unsigned)__builtin_ctzll((uint64_t)(s >> 64));
}

#define SET_EACH(e, s)                                                                             \
	for (set set_##e = (s); set_##e && (e = set_first(set_##e), true); set_##e &= set_##e - 1)

struct event {
	uint8_t thread, number; /* number in its thread */
	bool reads, writes, fence;
	int order;
	uint8_t place;	      /* not of a fence */
	uint8_t from;	      /* rf: the write that it reads from */
	uint64_t read, wrote; /* values */
	uintptr_t site;
	set before;    /* what happens before it (hb) */
	set sequence;  /* earlier in its thread (sb) */
	set elsewhere; /* of these, those at another place (sb|≠loc) */
	set released;  /* of a write: what an acquiring read of it learns */
	set hop;       /* elsewhere of all that happens before it (sb|≠loc; hb) */
	set scb;       /* the part of scb that never changes; see rules.c */
};

struct place {
	uint8_t *at;
	uint8_t count;
	uint8_t order[WRITES]; /* mo: events; the first is the initial value */
};

struct thread_view {
	uint8_t count, last; /* last: its last event, if count > 0 */
	set unfenced;	     /* what relaxed reads would learn, at the next acquire fence */
	set fenced;	     /* what a release fence gives to later relaxed writes */
};

struct graph {
	unsigned events, places;
	set sc; /* events that are seq_cst */
	struct place place[PLACES];
	struct thread_view thread[EXPLORER_THREADS];
	struct event event[EVENTS];
};

/* A choice for the next operation of a thread. */
struct choice {
	uint8_t from;  /* the write to read from */
	uint8_t index; /* in mo, of the write that it is */
};

unsigned graph_place(struct graph *g, const struct operation *o);
/* Lists the choices that coherence and atomicity allow. */
unsigned graph_choices(const struct graph *g, unsigned thread, const struct operation *o,
	struct choice choices[WRITES]);
/* Adds the event. False: the graph is not consistent. */
bool graph_add(struct graph *g, unsigned thread, struct operation *o, struct choice choice);
/* How many events of @of happen before the next operation of @thread. */
unsigned graph_knows(const struct graph *g, unsigned thread, unsigned of);

#endif
