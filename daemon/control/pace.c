#include "daemon/control/pace.h"

#include "proto/order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	SHARE = 8,	   /* a user or run gets 1/8 of the time */
	MOST_NS = 2000000, /* highest credit: a burst after a pause */
	/* Highest debt. Making a large ring takes hundreds of milliseconds; after that, its
	 * trainer's wake-ups must not wait for seconds. */
	DEBT_NS = 10000000,
	MS_NS = 1000000,
};

void paces_init(struct paces *paces)
{
	LIST_INIT(&paces->root.children);
	TAILQ_INIT(&paces->queue[0]);
	TAILQ_INIT(&paces->queue[1]);
}

static void pace_drop(struct pace *pace)
{
	LIST_REMOVE(pace, sibling);
	free(pace);
}

void paces_free(struct paces *paces)
{
	struct pace *user, *next_user, *run, *next;

	for (user = LIST_FIRST(&paces->root.children); user; user = next_user) {
		next_user = LIST_NEXT(user, sibling);
		for (run = LIST_FIRST(&user->children); run; run = next) {
			next = LIST_NEXT(run, sibling);
			free(run);
		}
		free(user);
	}
}

/* However many users or runs wait, half of the time is left to the others. */
static int64_t parts(const struct pace *pace)
{
	unsigned hungry = pace->parent->hungry;

	return hungry > SHARE / 2 ? 2 * (int64_t)hungry : SHARE;
}

static void fill(struct pace *pace, uint64_t now_ms)
{
	pace->credit_ns += (int64_t)(now_ms - pace->filled_ms) * MS_NS / parts(pace);
	if (pace->credit_ns > MOST_NS)
		pace->credit_ns = MOST_NS;
	pace->filled_ms = now_ms;
}

void pace_clean(struct paces *paces, uint64_t now_ms)
{
	struct pace *user, *next_user, *run, *next;

	for (user = LIST_FIRST(&paces->root.children); user; user = next_user) {
		next_user = LIST_NEXT(user, sibling);
		for (run = LIST_FIRST(&user->children); run; run = next) {
			next = LIST_NEXT(run, sibling);
			fill(run, now_ms);
			if (run->members == 0 && run->credit_ns > 0)
				pace_drop(run);
		}
		fill(user, now_ms);
		if (LIST_EMPTY(&user->children) && user->credit_ns > 0)
			pace_drop(user);
	}
}

/* ---- members, their runs and users ---- */

static struct pace *find(struct pace *parent, uint64_t key, uint64_t now_ms)
{
	struct pace *pace;

	LIST_FOREACH(pace, &parent->children, sibling)
	if (pace->key == key)
		return pace;
	pace = calloc(1, sizeof(*pace));
	if (!pace)
		return NULL;
	*pace = (struct pace){
		.parent = parent, .key = key, .credit_ns = MOST_NS, .filled_ms = now_ms};
	LIST_INIT(&pace->children);
	TAILQ_INIT(&pace->waiting);
	LIST_INSERT_HEAD(&parent->children, pace, sibling);
	return pace;
}

static void count(struct pace *run, int members)
{
	for (struct pace *pace = run; pace->parent; pace = pace->parent) {
		bool before = pace->members > 0;

		pace->members += (unsigned)members;
		pace->parent->live += (unsigned)((pace->members > 0) - before);
	}
}

bool pace_join(struct paces *paces, struct pace_member *member, uid_t uid, uint64_t now_ms)
{
	struct pace *user = find(&paces->root, uid, now_ms);

	member->pace = user ? find(user, 0, now_ms) : NULL;
	if (!member->pace)
		return false;
	count(member->pace, 1);
	return true;
}

void pace_leave(struct pace_member *member)
{
	count(member->pace, -1);
}

/* ---- time and credit ---- */

uint64_t pace_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static bool alone(const struct pace *pace)
{
	return pace->parent->live <= 1;
}

void pace_charge(struct pace_member *member, uint64_t used_ns)
{
	for (struct pace *pace = member->pace; pace->parent; pace = pace->parent) {
		if (alone(pace))
			continue;
		pace->credit_ns -= (int64_t)used_ns;
		if (pace->credit_ns < -DEBT_NS)
			pace->credit_ns = -DEBT_NS;
	}
}

bool pace_may(struct pace_member *member, uint64_t now_ms)
{
	for (struct pace *pace = member->pace; pace->parent; pace = pace->parent) {
		fill(pace, now_ms);
		if (!alone(pace) && pace->credit_ns <= 0)
			return false;
	}
	return true;
}

/* ---- waiting ---- */

/* A member of @run began to wait, or none waits any more. */
static void count_hungry(const struct pace *run, bool waits)
{
	struct pace *user = run->parent;
	bool before = user->hungry > 0;

	user->hungry += waits ? 1 : -1U;
	user->parent->hungry += (unsigned)((user->hungry > 0) - before);
}

static void enqueue(struct pace *run, struct pace_queue *queue)
{
	if (!run->in != !queue)
		count_hungry(run, queue);
	if (run->in)
		TAILQ_REMOVE(run->in, run, queue);
	if (queue)
		TAILQ_INSERT_TAIL(queue, run, queue);
	run->in = queue;
}

void pace_wait(struct paces *paces, struct pace_member *member)
{
	assert(!member->waiting);
	member->waiting = true;
	TAILQ_INSERT_TAIL(&member->pace->waiting, member, waits);
	if (!member->pace->in)
		enqueue(member->pace, &paces->queue[paces->now]);
}

void pace_forget(struct pace_member *member)
{
	if (!member->waiting)
		return;
	member->waiting = false;
	TAILQ_REMOVE(&member->pace->waiting, member, waits);
	if (TAILQ_EMPTY(&member->pace->waiting))
		enqueue(member->pace, NULL);
}

void pace_run(struct paces *paces, struct pace_member *member, const char *run, uint64_t now_ms)
{
	struct pace *to = find(member->pace->parent, order_name_hash(run, strlen(run)) | 1, now_ms);
	bool waits = member->waiting;

	if (!to) /* only less fair */
		return;
	pace_forget(member);
	count(to, 1);
	count(member->pace, -1);
	member->pace = to;
	if (waits)
		pace_wait(paces, member);
}

bool pace_serve(
	struct paces *paces, uint64_t now_ms, bool (*serve)(struct pace_member *member, bool alone))
{
	struct pace *run;

	while ((run = TAILQ_FIRST(&paces->queue[paces->now]))) {
		struct pace_member *member = TAILQ_FIRST(&run->waiting);
		bool may = pace_may(member, now_ms);

		enqueue(run, &paces->queue[may ? paces->now : !paces->now]);
		if (!may)
			continue;
		pace_forget(member);
		if (serve(member, alone(run) && alone(run->parent)))
			pace_wait(paces, member);
	}
	paces->now = !paces->now;
	return !TAILQ_EMPTY(&paces->queue[paces->now]);
}
