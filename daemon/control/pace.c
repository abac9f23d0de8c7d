#include "daemon/control/pace.h"

#include "daemon/control/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	SHARE = 8,	   /* one part of the time in so many */
	MOST_NS = 2000000, /* of credit: this much may come at once after a pause */
	/* Of debt. A large ring takes its maker hundreds of milliseconds; after that its trainer's
	 * wake-ups must not wait for seconds. */
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

static void fill(struct pace *pace, uint64_t now_ms)
{
	pace->credit_ns += (int64_t)(now_ms - pace->filled_ms) * MS_NS / SHARE;
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
			if (run->connected == 0 && run->credit_ns > 0)
				pace_drop(run);
		}
		fill(user, now_ms);
		if (LIST_EMPTY(&user->children) && user->credit_ns > 0)
			pace_drop(user);
	}
}

/* ---- who it is ---- */

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

static void count(struct pace *run, int connections)
{
	for (struct pace *pace = run; pace->parent; pace = pace->parent) {
		bool before = pace->connected > 0;

		pace->connected += (unsigned)connections;
		pace->parent->live += (unsigned)((pace->connected > 0) - before);
	}
}

bool pace_join(struct connection *c)
{
	uint64_t now = uv_now(&c->server->loop);
	struct pace *user = find(&c->server->paces.root, c->uid, now);

	c->pace = user ? find(user, 0, now) : NULL;
	if (!c->pace)
		return false;
	count(c->pace, 1);
	return true;
}

void pace_leave(struct connection *c)
{
	count(c->pace, -1);
}

/* ---- what it takes ---- */

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

void pace_charge(struct connection *c, uint64_t used_ns)
{
	for (struct pace *pace = c->pace; pace->parent; pace = pace->parent) {
		if (alone(pace))
			continue;
		pace->credit_ns -= (int64_t)used_ns;
		if (pace->credit_ns < -DEBT_NS)
			pace->credit_ns = -DEBT_NS;
	}
}

bool pace_may(struct connection *c)
{
	for (struct pace *pace = c->pace; pace->parent; pace = pace->parent) {
		fill(pace, uv_now(&c->server->loop));
		if (!alone(pace) && pace->credit_ns <= 0)
			return false;
	}
	return true;
}

/* ---- waiting ---- */

static void enqueue(struct pace *run, struct pace_queue *queue)
{
	if (run->in)
		TAILQ_REMOVE(run->in, run, queue);
	if (queue)
		TAILQ_INSERT_TAIL(queue, run, queue);
	run->in = queue;
}

void pace_wait(struct connection *c)
{
	struct paces *paces = &c->server->paces;

	assert(!c->waiting);
	c->waiting = true;
	TAILQ_INSERT_TAIL(&c->pace->waiting, c, waits);
	if (!c->pace->in)
		enqueue(c->pace, &paces->queue[paces->now]);
}

void pace_forget(struct connection *c)
{
	if (!c->waiting)
		return;
	c->waiting = false;
	TAILQ_REMOVE(&c->pace->waiting, c, waits);
	if (TAILQ_EMPTY(&c->pace->waiting))
		enqueue(c->pace, NULL);
}

void pace_run(struct connection *c, const char *run)
{
	struct pace *to = find(
		c->pace->parent, order_name_hash(run, strlen(run)) | 1, uv_now(&c->server->loop));
	bool waits = c->waiting;

	if (!to) /* it stays where it is: a matter of fairness alone */
		return;
	pace_forget(c);
	count(to, 1);
	count(c->pace, -1);
	c->pace = to;
	if (waits)
		pace_wait(c);
}

/* A packet of @c, which waits no longer; without others beside it, it is listened to again. */
static void serve(struct connection *c)
{
	const struct pace *run = c->pace;

	pace_forget(c);
	if ((alone(run) && alone(run->parent)) || !connection_receive(c))
		connection_listen(c);
	else
		pace_wait(c);
}

bool pace_serve(struct server *server)
{
	struct paces *paces = &server->paces;
	struct pace *run;

	while ((run = TAILQ_FIRST(&paces->queue[paces->now]))) {
		struct connection *c = TAILQ_FIRST(&run->waiting);
		bool may = pace_may(c);

		enqueue(run, &paces->queue[may ? paces->now : !paces->now]);
		if (may)
			serve(c);
	}
	paces->now = !paces->now;
	return !TAILQ_EMPTY(&paces->queue[paces->now]);
}
