/*
 * memory                         all executions of the ring's threads under RC11; then each memory
 *                                order of the explored code is weakened, one at a time. A weakening
 *                                must break a promise, or be listed below with the reason why not
 * memory --deep [--seconds N]    more and longer programs instead, for N seconds of CPU time
 *
 * The promises: no data race on tokens and rows; every batch has the tokens that were written for
 * it; no side sleeps for ever, although no timeout helps.
 */
#include "tests/memory/explorer.h"
#include "tests/memory/litmus.h"
#include "tests/memory/ring.h"
#include "tests/memory/sites.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct trial {
	struct program program;
	enum { WEAKENED, ONCE, DEEP } when; /* with each weakening; without any; only with --deep */
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
		WEAKENED},
	{{"one slot", one_slot, NEXT}, WEAKENED},
	{{"one slot, polling", one_slot, POLL}, WEAKENED},
	{{"releasing, then computing", computing, COMPUTE}, WEAKENED},
	{{"most slots kept", kept, NEXT}, WEAKENED},
	{{"most slots kept, polling", kept, POLL}, WEAKENED},
	{{"status", computing, STATUS}, WEAKENED},
	{{"looking", looking, LOOK}, ONCE},
	{{"two slots", two_slots, NEXT}, DEEP},
	{{"one slot, longer", one_slot_more, NEXT}, DEEP},
	{{"most slots kept, longer", kept_more, NEXT}, DEEP},
	{{"most slots kept, longer, polling", kept_more, POLL}, DEEP},
	{{"three slots", three_slots, NEXT}, DEEP},
	{{"two slots, longer", two_slots_more, NEXT}, DEEP},
	{{"four slots, three kept", kept_long, NEXT}, DEEP},
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

		if ((t->when == DEEP && !deep) || (limit_s > 0 && begin >= limit_s))
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

/* ---- weakening ---- */

/* Orders that are stronger than the explored code needs, and why. */
static const struct needless {
	const char *function;
	enum operation_kind kind;
	const char *why;
} needless[] = {
	{"look_for_batch", LOAD, "`end` is written before the ring is sent over the socket"},
	{"feed_new", STORE, "`end` is written before the ring is sent over the socket"},
	{"ring_format", STORE, "`end` is written before the ring is sent over the socket"},
	{"feed_counters", LOAD, "lost_wakes is a number for status, which orders nothing"},
	{"ring_wanted", LOAD,
		"the client read the words before it sent the byte, the data thread reads later "
		"ones"},
};

/* There is no tick here. Its operations are for numbers and hints. */
static bool is_ticks(const struct site *s)
{
	return strcmp(s->function, "feed_active") == 0 || strcmp(s->function, "feed_overdue") == 0;
}

static const char *why_needless(const struct site *s)
{
	for (unsigned i = 0; i < COUNT(needless); i++)
		if (strcmp(needless[i].function, s->function) == 0 && needless[i].kind == s->kind)
			return needless[i].why;
	return NULL;
}

/* The weaker orders, strongest first. */
static unsigned weaker(const struct site *s, int list[4])
{
	bool reads = s->kind != STORE, writes = s->kind != LOAD;
	unsigned n = 0;

	if (s->order == memory_order_seq_cst && reads && writes)
		list[n++] = memory_order_acq_rel;
	if (s->order >= memory_order_acq_rel && writes)
		list[n++] = memory_order_release;
	if (s->order >= memory_order_acq_rel && reads)
		list[n++] = memory_order_acquire;
	if (s->order != memory_order_relaxed)
		list[n++] = memory_order_relaxed;
	return n;
}

/* The first trial that fails, with its failure in *@e; NULL: none. */
static const char *find_broken(struct exploration *e)
{
	for (unsigned i = 0; i < COUNT(trials); i++) {
		if (trials[i].when != WEAKENED)
			continue;
		*e = explore(&trials[i].program, 0);
		if (e->failed)
			return trials[i].program.name;
	}
	return NULL;
}

static const char *const order_name[] = {
	"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
static const char *const kind_name[] = {
	"load", "store", "exchange", "add", "compare-exchange", "fence"};

/* False: a weakening was not found broken, and is not listed above; or it is, but was found. */
static bool weaken(const struct site *s, int order)
{
	const char *why = why_needless(s), *where;
	struct exploration e;

	sites_weaken(s, order);
	where = find_broken(&e);
	sites_weaken(NULL, 0);
	printf("%-24s %-18s %-6s %-8s %-8s ", s->line, s->function, kind_name[s->kind],
		order_name[s->order], order_name[order]);
	if (where)
		printf("broken: %s: %s%s\n", where, e.what, why ? "; BUT LISTED" : "");
	else
		printf("%s\n", why ? why : "NOT FOUND BROKEN");
	fflush(stdout);
	return (where != NULL) != (why != NULL);
}

static bool weaken_all(void)
{
	unsigned n, wrong = 0, tried = 0;
	const struct site *site = sites_all(&n);

	printf("\n%-24s %-18s %-6s %-8s %-8s\n", "place", "function", "", "order", "weakened");
	for (unsigned i = 0; i < n; i++) {
		int list[4];
		unsigned orders = site[i].order < 0 ? 0 : weaker(&site[i], list);

		if (strncmp(site[i].line, "tests/", 6) == 0)
			continue;
		if (site[i].order < 0 && !is_ticks(&site[i])) {
			printf("%-24s %-18s NEVER REACHED\n", site[i].line, site[i].function);
			wrong++;
		}
		/* If an order does not break it, a stronger one does not either. */
		for (unsigned k = why_needless(&site[i]) && orders > 0 ? orders - 1 : 0; k < orders;
			k++, tried++)
			wrong += !weaken(&site[i], list[k]);
	}
	printf("%u weakenings, %u not as listed\n", tried, wrong);
	return tried > 0 && wrong == 0;
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
	if (!sites_find() || !litmus_run() || !check_all(deep, limit_s))
		return 1;
	return deep || weaken_all() ? 0 : 1;
}
