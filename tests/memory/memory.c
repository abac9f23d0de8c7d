/*
 * memory                         all executions of the ring's threads under RC11
 * memory --deep [--seconds N]    also of longer programs, for N seconds of CPU time
 *
 * The promises: no data race on tokens and rows; every batch has the tokens that were written for
 * it; no side sleeps for ever, although no timeout helps.
 */
#include "tests/memory/explorer.h"
#include "tests/memory/ring_sides.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct trial {
	struct program program;
	bool deep; /* only with --deep */
};

/* ring_setup(slots, batches, kept, taken, reads in flight) */
#define SETUP(name, ...)                                                                           \
	static void name(void)                                                                     \
	{                                                                                          \
		ring_setup(__VA_ARGS__);                                                           \
	}
SETUP(one_slot, 1, 2, 1, 0, 64)
SETUP(two_slots, 2, 3, 1, 0, 64)
SETUP(kept, 4, 5, 4, 3, 1)
SETUP(computing, 2, 3, 1, 1, 1)
SETUP(looking, 4, 5, 3, 3, 1)
SETUP(one_slot_more, 1, 3, 1, 0, 64)
SETUP(two_slots_more, 2, 4, 1, 0, 1)
SETUP(three_slots, 3, 5, 2, 2, 2)
SETUP(kept_more, 4, 6, 4, 3, 1)
SETUP(kept_long, 4, 7, 3, 3, 2)

#define THREADS(client)                                                                            \
	{ring_data, ring_control, client}, {"data", "control", "client"}, {false, true}, NULL
#define NEXT	THREADS(ring_client)
#define POLL	THREADS(ring_polling_client)
#define COMPUTE THREADS(ring_computing_client)
#define LOOK                                                                                       \
	{ring_looking_data, ring_control, ring_client}, {"data", "control", "client"},             \
		{false, true}, NULL
#define STATUS                                                                                     \
	{ring_data, ring_control, ring_computing_client, ring_status},                             \
		{"data", "control", "client", "status"}, {false, true}, NULL

static const struct trial trials[] = {
	{{"reason", ring_reason_setup, {ring_saying, ring_asking}, {"data", "client"}, {false},
		 NULL},
		false},
	{{"one slot", one_slot, NEXT}, false},
	{{"one slot, polling", one_slot, POLL}, false},
	{{"releasing, then computing", computing, COMPUTE}, false},
	{{"most slots kept", kept, NEXT}, false},
	{{"most slots kept, polling", kept, POLL}, false},
	{{"status", computing, STATUS}, false},
	{{"looking", looking, LOOK}, false},
	{{"two slots", two_slots, NEXT}, true},
	{{"one slot, longer", one_slot_more, NEXT}, true},
	{{"most slots kept, longer", kept_more, NEXT}, true},
	{{"most slots kept, longer, polling", kept_more, POLL}, true},
	{{"three slots", three_slots, NEXT}, true},
	{{"two slots, longer", two_slots_more, NEXT}, true},
	{{"four slots, three kept", kept_long, NEXT}, true},
};

static double cpu(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

/* Explores the trials as they are. False: one failed. */
static bool check_all(bool deep, double limit_s)
{
	bool right = true;

	for (unsigned i = 0; i < COUNT(trials); i++) {
		const struct trial *t = &trials[i];
		double begin = cpu();

		if ((t->deep && !deep) || (limit_s > 0 && begin >= limit_s))
			continue;

		/* The time that is left is for this trial and the later ones. */
		double share_s = limit_s > 0 ? (limit_s - begin) / (double)(COUNT(trials) - i) : 0;
		struct exploration e = explore(&t->program, share_s);

		printf("%-34s %9lu graphs %8lu complete %7.2f s  %s\n", t->program.name, e.states,
			e.executions, cpu() - begin,
			e.failed    ? "FAILED"
			: e.stopped ? "all right until the time was up"
				    : "all right");
		if (e.failed)
			explorer_print_failure();
		right &= !e.failed;
		fflush(stdout);
	}
	return right;
}

int main(int argc, char **argv)
{
	bool deep = false;
	double limit_s = 0;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--deep") == 0)
			deep = true;
		else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
			limit_s = atof(argv[++i]);
	return litmus_run() && check_all(deep, limit_s) ? 0 : 1;
}
