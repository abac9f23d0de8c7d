/*
 * Litmus tests: small programs whose outcomes under C11 are known. They show that the explorer sees
 * each outcome that the model allows, and none that it forbids.
 */

#include "tests/memory/explorer.h"

#include <stdatomic.h>
#include <stdio.h>

#define COUNT(array)		     (sizeof(array) / sizeof((array)[0]))
#define RELAXED			     memory_order_relaxed
#define ACQUIRE			     memory_order_acquire
#define RELEASE			     memory_order_release
#define SC			     memory_order_seq_cst
#define LOAD_OF(word, order)	     (int)atomic_load_explicit(&m->word, order)
#define STORE_TO(word, value, order) atomic_store_explicit(&m->word, value, order)
#define FENCE_OF(order)		     atomic_thread_fence(order)

static struct memory {
	_Atomic uint64_t x, y;
	uint64_t channel;
	int plain;
	int r[4];
} * m;

static void setup(void)
{
	m = world_alloc(sizeof(*m), 64);
	explorer_shared(&m->plain, sizeof(m->plain), "plain");
	explorer_name(&m->x, "x");
	explorer_name(&m->y, "y");
	for (unsigned i = 0; i < COUNT(m->r); i++)
		m->r[i] = -1;
}

#define T(name, ...)                                                                               \
	static void name(void)                                                                     \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}
#define OUTCOME(name, test)                                                                        \
	static bool name(const int *r)                                                             \
	{                                                                                          \
		return test;                                                                       \
	}

/* Store buffering: the wait/wake handshake. */
T(sb_0, STORE_TO(x, 1, SC); m->r[0] = LOAD_OF(y, SC);)
T(sb_1, STORE_TO(y, 1, SC); m->r[1] = LOAD_OF(x, SC);)
T(sb_release_store, STORE_TO(y, 1, RELEASE); m->r[1] = LOAD_OF(x, SC);)
T(sb_acquire_load, STORE_TO(y, 1, SC); m->r[1] = LOAD_OF(x, ACQUIRE);)
OUTCOME(both_old, r[0] == 0 && r[1] == 0)

/* Message passing: publish and release. */
T(mp_release, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELEASE);)
T(mp_relaxed, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELAXED);)
T(mp_fence, STORE_TO(x, 1, RELAXED); FENCE_OF(RELEASE); STORE_TO(y, 1, RELAXED);)
T(mp_again, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELEASE); STORE_TO(y, 2, RELAXED);)
T(mp_acquire, m->r[0] = LOAD_OF(y, ACQUIRE); m->r[1] = LOAD_OF(x, RELAXED);)
T(mp_plainly, m->r[0] = LOAD_OF(y, RELAXED); m->r[1] = LOAD_OF(x, RELAXED);)
T(mp_fenced, m->r[0] = LOAD_OF(y, RELAXED); FENCE_OF(ACQUIRE); m->r[1] = LOAD_OF(x, RELAXED);)
OUTCOME(stale, r[0] == 1 && r[1] == 0)
OUTCOME(stale_2, r[0] == 2 && r[1] == 0)

T(race_write, m->plain = 1; STORE_TO(y, 1, RELEASE);)
T(race_late, STORE_TO(y, 1, RELEASE); m->plain = 1;)
T(race_acquire, if (LOAD_OF(y, ACQUIRE)) m->r[0] = m->plain;)
T(race_relaxed, if (LOAD_OF(y, RELAXED)) m->r[0] = m->plain;)
OUTCOME(never, r[0] == 99)
OUTCOME(read_1, r[0] == 1)

/* Coherence; several writers and readers. */
T(co_writer, STORE_TO(x, 1, RELAXED); STORE_TO(x, 2, RELAXED);)
T(co_reader, m->r[0] = LOAD_OF(x, RELAXED); FENCE_OF(RELAXED); m->r[1] = LOAD_OF(x, RELAXED);)
OUTCOME(backward, (r[0] == 2 && r[1] < 2) || (r[0] == 1 && r[1] == 0))
T(set_x, STORE_TO(x, 1, SC);)
T(set_y, STORE_TO(y, 1, SC);)
T(iriw_2, m->r[0] = LOAD_OF(x, SC); m->r[1] = LOAD_OF(y, SC);)
T(iriw_3, m->r[2] = LOAD_OF(y, SC); m->r[3] = LOAD_OF(x, SC);)
T(iriw_weak_2, m->r[0] = LOAD_OF(x, ACQUIRE); m->r[1] = LOAD_OF(y, ACQUIRE);)
T(iriw_weak_3, m->r[2] = LOAD_OF(y, ACQUIRE); m->r[3] = LOAD_OF(x, ACQUIRE);)
OUTCOME(two_orders, r[0] == 1 && r[1] == 0 && r[2] == 1 && r[3] == 0)

/* Channels. */
T(send_after, m->plain = 1; channel_send(&m->channel);)
T(wait_then, channel_wait(&m->channel); m->r[0] = m->plain;)
T(wait_flag, STORE_TO(x, 1, SC); if (!LOAD_OF(y, SC)) channel_wait(&m->channel);)
T(set_flag, STORE_TO(y, 1, SC); if (LOAD_OF(x, SC)) channel_send(&m->channel);)
T(set_flag_weak, STORE_TO(y, 1, RELEASE); if (LOAD_OF(x, SC)) channel_send(&m->channel);)

static const struct litmus {
	const char *name;
	void (*thread[EXPLORER_THREADS])(void);
	bool (*outcome)(const int *r);
	/* ALLOWED: seen. FORBIDDEN: not seen. FAILS: a race, or a thread that sleeps for ever. */
	enum { ALLOWED, FORBIDDEN, FAILS } expected;
} tests[] = {
	{"SB, seq_cst", {sb_0, sb_1}, both_old, FORBIDDEN},
	{"SB, one store release", {sb_0, sb_release_store}, both_old, ALLOWED},
	{"SB, one load acquire", {sb_0, sb_acquire_load}, both_old, ALLOWED},
	{"MP, release and acquire", {mp_release, mp_acquire}, stale, FORBIDDEN},
	{"MP, relaxed store", {mp_relaxed, mp_acquire}, stale, ALLOWED},
	{"MP, relaxed load", {mp_release, mp_plainly}, stale, ALLOWED},
	{"MP, both fences", {mp_fence, mp_fenced}, stale, FORBIDDEN},
	{"MP, one fence", {mp_fence, mp_plainly}, stale, ALLOWED},
	{"MP, no release sequence: a store", {mp_again, mp_acquire}, stale_2, ALLOWED},
	{"race, release and acquire", {race_write, race_acquire}, read_1, ALLOWED},
	{"race, relaxed load", {race_write, race_relaxed}, never, FAILS},
	{"race, write after release", {race_late, race_acquire}, never, FAILS},
	{"race, channel", {send_after, wait_then}, read_1, ALLOWED},
	{"CoRR", {co_writer, co_reader}, backward, FORBIDDEN},
	{"IRIW, acquire", {set_x, set_y, iriw_weak_2, iriw_weak_3}, two_orders, ALLOWED},
	{"IRIW, seq_cst", {set_x, set_y, iriw_2, iriw_3}, two_orders, FORBIDDEN},
	{"wait and wake, seq_cst", {wait_flag, set_flag}, never, FORBIDDEN},
	{"wait and wake, one release", {wait_flag, set_flag_weak}, never, FAILS},
};

static const struct litmus *now;
static bool was_seen;

static void look(void)
{
	was_seen |= now->outcome(m->r);
}

bool litmus_run(void)
{
	unsigned wrong = 0;

	for (now = tests; now < tests + COUNT(tests); now++) {
		struct program program = {.name = now->name, .setup = setup, .end = look};

		for (unsigned t = 0; t < EXPLORER_THREADS; t++)
			program.thread[t] = now->thread[t];
		was_seen = false;

		struct exploration e = explore(&program, 0);
		bool right = now->expected == FAILS
				     ? e.failed
				     : !e.failed && was_seen == (now->expected == ALLOWED);

		if (!right)
			printf("  litmus %s: %s\n", now->name,
				e.failed   ? e.what
				: was_seen ? "seen, but forbidden"
					   : "not seen");
		wrong += !right;
	}
	printf("%zu litmus tests: %s\n", COUNT(tests), wrong ? "WRONG" : "as C11 says");
	return wrong == 0;
}
