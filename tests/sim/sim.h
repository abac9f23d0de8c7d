/* One history, and the options that shape it. */
#ifndef TOKEND_SIM_H
#define TOKEND_SIM_H

#include "tests/sim/node.h"

struct options {
	uint64_t seed;
	uint64_t events;  /* of the director */
	uint32_t without; /* classes of events that are off, one bit each */
	uint64_t engine;  /* events of the engine's own history */
	uint64_t days;	  /* of a month; 0: all */
	bool month, verbose, no_shrink;
};

/* Results of a child process. */
struct result {
	struct world_counts counts;
	uint64_t switches, interrupts, trace, virtual_ns;
};

/* Runs in a process of its own. */
void history(const struct options *o);
/* month.c */
void month(const struct options *o);
/* shrink.c: finds a smaller set of options that still fails. @fails runs a child. */
void shrink(struct options *o, bool (*fails)(const struct options *o));
void print_command(const struct options *o);

#endif
