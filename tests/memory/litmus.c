/*
 * Litmus tests: small programs whose outcomes under C11 are known. They show that the explorer sees
 * each outcome that the model allows, and none that it forbids.
 */
#include "tests/memory/litmus.h"

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
	_Atomic uint64_t x, y, z;
	uint64_t mutex, channel;
	int plain;
	int r[6];
} * m;
static const struct litmus *now;
static bool was_seen;

static void setup(void)
{
	m = world_alloc(sizeof(*m), 64);
	explorer_shared(&m->plain, sizeof(m->plain), "plain");
	explorer_name(&m->x, "x");
	explorer_name(&m->y, "y");
	explorer_name(&m->z, "z");
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
#define STORE_LOAD(name, mine, other, store, load, out)                                            \
	T(name, STORE_TO(mine, 1, store); m->r[out] = LOAD_OF(other, load);)
STORE_LOAD(sb_sc_0, x, y, SC, SC, 0)
STORE_LOAD(sb_sc_1, y, x, SC, SC, 1)
STORE_LOAD(sb_release_store, y, x, RELEASE, SC, 1)
STORE_LOAD(sb_acquire_load, y, x, SC, ACQUIRE, 1)
STORE_LOAD(sb_ra_0, x, y, RELEASE, ACQUIRE, 0)
STORE_LOAD(sb_ra_1, y, x, RELEASE, ACQUIRE, 1)
T(sb_fence_0, STORE_TO(x, 1, RELAXED); FENCE_OF(SC); m->r[0] = LOAD_OF(y, RELAXED);)
T(sb_fence_1, STORE_TO(y, 1, RELAXED); FENCE_OF(SC); m->r[1] = LOAD_OF(x, RELAXED);)
T(sb_weak_fence_1, STORE_TO(y, 1, RELAXED); FENCE_OF(memory_order_acq_rel);
	m->r[1] = LOAD_OF(x, RELAXED);)
T(sb_swap_0, atomic_exchange_explicit(&m->x, 1, memory_order_acq_rel);
	m->r[0] = LOAD_OF(y, ACQUIRE);)
OUTCOME(both_old, r[0] == 0 && r[1] == 0)

/* Message passing: publish and release. */
T(mp_release, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELEASE);)
T(mp_relaxed, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELAXED);)
T(mp_fence, STORE_TO(x, 1, RELAXED); FENCE_OF(RELEASE); STORE_TO(y, 1, RELAXED);)
T(mp_again, STORE_TO(x, 1, RELAXED); STORE_TO(y, 1, RELEASE); STORE_TO(y, 2, RELAXED);)
T(mp_add, atomic_fetch_add_explicit(&m->y, 1, RELAXED);)
T(mp_acquire, m->r[0] = LOAD_OF(y, ACQUIRE); m->r[1] = LOAD_OF(x, RELAXED);)
T(mp_plainly, m->r[0] = LOAD_OF(y, RELAXED); m->r[1] = LOAD_OF(x, RELAXED);)
T(mp_fenced, m->r[0] = LOAD_OF(y, RELAXED); FENCE_OF(ACQUIRE); m->r[1] = LOAD_OF(x, RELAXED);)
OUTCOME(stale, r[0] == 1 && r[1] == 0)
OUTCOME(stale_2, r[0] == 2 && r[1] == 0)
OUTCOME(fresh, r[0] == 1 && r[1] == 1)

T(race_write, m->plain = 1; STORE_TO(y, 1, RELEASE);)
T(race_late, STORE_TO(y, 1, RELEASE); m->plain = 1;)
T(race_acquire, if (LOAD_OF(y, ACQUIRE)) m->r[0] = m->plain;)
T(race_relaxed, if (LOAD_OF(y, RELAXED)) m->r[0] = m->plain;)
T(race_mutex, explorer_lock(&m->mutex); m->plain++; explorer_unlock(&m->mutex);)
OUTCOME(never, r[0] == 99)
OUTCOME(read_1, r[0] == 1)

/* Coherence, several writers, several readers. */
T(co_writer, STORE_TO(x, 1, RELAXED); STORE_TO(x, 2, RELAXED);)
T(co_reader, m->r[0] = LOAD_OF(x, RELAXED); FENCE_OF(RELAXED); m->r[1] = LOAD_OF(x, RELAXED);)
OUTCOME(backward, (r[0] == 2 && r[1] < 2) || (r[0] == 1 && r[1] == 0))
T(set_x, STORE_TO(x, 1, SC);)
T(set_y, STORE_TO(y, 1, SC);)
T(set_x_weak, STORE_TO(x, 1, RELEASE);)
T(set_y_weak, STORE_TO(y, 1, RELEASE);)
T(iriw_2, m->r[0] = LOAD_OF(x, SC); m->r[1] = LOAD_OF(y, SC);)
T(iriw_3, m->r[2] = LOAD_OF(y, SC); m->r[3] = LOAD_OF(x, SC);)
T(iriw_weak_2, m->r[0] = LOAD_OF(x, ACQUIRE); m->r[1] = LOAD_OF(y, ACQUIRE);)
T(iriw_weak_3, m->r[2] = LOAD_OF(y, ACQUIRE); m->r[3] = LOAD_OF(x, ACQUIRE);)
T(iriw_fence_2, m->r[0] = LOAD_OF(x, ACQUIRE); FENCE_OF(SC); m->r[1] = LOAD_OF(y, ACQUIRE);)
T(iriw_fence_3, m->r[2] = LOAD_OF(y, ACQUIRE); FENCE_OF(SC); m->r[3] = LOAD_OF(x, ACQUIRE);)
OUTCOME(two_orders, r[0] == 1 && r[1] == 0 && r[2] == 1 && r[3] == 0)
T(wrc_1, m->r[0] = LOAD_OF(x, ACQUIRE); if (m->r[0]) STORE_TO(y, 1, RELEASE);)
T(wrc_2, m->r[1] = LOAD_OF(y, ACQUIRE); m->r[2] = LOAD_OF(x, RELAXED);)
OUTCOME(no_cause, r[1] == 1 && r[2] == 0)
T(ww_0, STORE_TO(x, 1, RELAXED); STORE_TO(y, 2, RELAXED);)
T(ww_1, STORE_TO(y, 1, RELAXED); STORE_TO(x, 2, RELAXED);)
T(ww_sc_0, STORE_TO(x, 1, SC); STORE_TO(y, 2, SC);)
T(ww_sc_1, STORE_TO(y, 1, SC); STORE_TO(x, 2, SC);)
T(ww_see_x, m->r[0] = LOAD_OF(x, RELAXED); FENCE_OF(RELAXED); m->r[1] = LOAD_OF(x, RELAXED);)
T(ww_see_y, m->r[2] = LOAD_OF(y, RELAXED); FENCE_OF(RELAXED); m->r[3] = LOAD_OF(y, RELAXED);)
OUTCOME(first_wins, r[0] == 2 && r[1] == 1 && r[2] == 2 && r[3] == 1)
T(add_0, m->r[0] = (int)atomic_fetch_add_explicit(&m->x, 1, RELAXED);)
T(add_1, m->r[1] = (int)atomic_fetch_add_explicit(&m->x, 1, RELAXED);)
OUTCOME(same, r[0] == r[1])
T(cas_0, uint64_t none = 0; m->r[0] = atomic_compare_exchange_strong(&m->x, &none, 1);)
T(cas_1, uint64_t none = 0; m->r[1] = atomic_compare_exchange_strong(&m->x, &none, 2);)
OUTCOME(not_one, r[0] + r[1] != 1)
T(lb_0, m->r[0] = LOAD_OF(x, RELAXED); STORE_TO(y, 1, RELAXED);)
T(lb_1, m->r[1] = LOAD_OF(y, RELAXED); STORE_TO(x, 1, RELAXED);)
OUTCOME(both_new, r[0] == 1 && r[1] == 1)

/* From the paper: C11 forbade it, although Power and Arm compilers' code shows it (Z6.U). */
T(z6_0, STORE_TO(x, 1, SC); STORE_TO(y, 1, RELEASE);)
T(z6_1, m->r[0] = (int)atomic_fetch_add_explicit(&m->y, 1, SC); m->r[1] = LOAD_OF(y, RELAXED);)
T(z6_2, STORE_TO(y, 3, SC); m->r[2] = LOAD_OF(x, SC);)
OUTCOME(z6, r[0] == 1 && r[1] == 3 && r[2] == 0)

/* Channels. */
T(send_after, m->plain = 1; channel_send(&m->channel);)
T(wait_then, channel_wait(&m->channel); m->r[0] = m->plain;)
T(wait_flag, STORE_TO(x, 1, SC); if (!LOAD_OF(y, SC)) channel_wait(&m->channel);)
T(set_flag, STORE_TO(y, 1, SC); if (LOAD_OF(x, SC)) channel_send(&m->channel);)
T(set_flag_weak, STORE_TO(y, 1, RELEASE); if (LOAD_OF(x, SC)) channel_send(&m->channel);)

static const struct litmus tests[] = {
	{"SB, seq_cst", {sb_sc_0, sb_sc_1}, both_old, FORBIDDEN},
	{"SB, one store release", {sb_sc_0, sb_release_store}, both_old, ALLOWED},
	{"SB, one load acquire", {sb_sc_0, sb_acquire_load}, both_old, ALLOWED},
	{"SB, release and acquire", {sb_ra_0, sb_ra_1}, both_old, ALLOWED},
	{"SB, relaxed with SC fences", {sb_fence_0, sb_fence_1}, both_old, FORBIDDEN},
	{"SB, one fence acq_rel", {sb_fence_0, sb_weak_fence_1}, both_old, ALLOWED},
	{"SB, SC fence against seq_cst", {sb_fence_0, sb_sc_1}, both_old, FORBIDDEN},
	{"SB, acq_rel exchange", {sb_swap_0, sb_sc_1}, both_old, ALLOWED},
	{"MP, release and acquire", {mp_release, mp_acquire}, stale, FORBIDDEN},
	{"MP, release and acquire", {mp_release, mp_acquire}, fresh, ALLOWED},
	{"MP, relaxed store", {mp_relaxed, mp_acquire}, stale, ALLOWED},
	{"MP, relaxed load", {mp_release, mp_plainly}, stale, ALLOWED},
	{"MP, release fence", {mp_fence, mp_acquire}, stale, FORBIDDEN},
	{"MP, acquire fence", {mp_release, mp_fenced}, stale, FORBIDDEN},
	{"MP, both fences", {mp_fence, mp_fenced}, stale, FORBIDDEN},
	{"MP, release sequence: a fetch_add", {mp_release, mp_add, mp_acquire}, stale_2, FORBIDDEN},
	{"MP, no release sequence: a store", {mp_again, mp_acquire}, stale_2, ALLOWED},
	{"race, release and acquire", {race_write, race_acquire}, read_1, ALLOWED},
	{"race, relaxed load", {race_write, race_relaxed}, never, FAILS},
	{"race, write after release", {race_late, race_acquire}, never, FAILS},
	{"race, mutex", {race_mutex, race_mutex, race_mutex}, never, FORBIDDEN},
	{"race, channel", {send_after, wait_then}, read_1, ALLOWED},
	{"CoRR", {co_writer, co_reader}, backward, FORBIDDEN},
	{"IRIW, acquire", {set_x_weak, set_y_weak, iriw_weak_2, iriw_weak_3}, two_orders, ALLOWED},
	{"IRIW, acquire, seq_cst stores", {set_x, set_y, iriw_weak_2, iriw_weak_3}, two_orders,
		ALLOWED},
	{"IRIW, seq_cst", {set_x, set_y, iriw_2, iriw_3}, two_orders, FORBIDDEN},
	{"IRIW, SC fences", {set_x_weak, set_y_weak, iriw_fence_2, iriw_fence_3}, two_orders,
		FORBIDDEN},
	{"WRC, release and acquire", {set_x_weak, wrc_1, wrc_2}, no_cause, FORBIDDEN},
	{"2+2W, relaxed", {ww_0, ww_1, ww_see_x, ww_see_y}, first_wins, ALLOWED},
	{"2+2W, seq_cst", {ww_sc_0, ww_sc_1, ww_see_x, ww_see_y}, first_wins, FORBIDDEN},
	{"fetch_add twice", {add_0, add_1}, same, FORBIDDEN},
	{"compare_exchange twice", {cas_0, cas_1}, not_one, FORBIDDEN},
	{"Z6.U", {z6_0, z6_1, z6_2}, z6, ALLOWED},
	{"LB, relaxed (C11 allows it: a limit)", {lb_0, lb_1}, both_new, FORBIDDEN},
	{"wait and wake, seq_cst", {wait_flag, set_flag}, never, FORBIDDEN},
	{"wait and wake, one release", {wait_flag, set_flag_weak}, never, FAILS},
};

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
