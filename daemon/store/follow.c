/*
 * Sessions, for the cache: when they need a piece next, and which pieces they need next.
 *
 * Pieces are fetched before they are needed: the fetch thread asks for the next one when it has
 * time, so there is no queue.
 */
#include "daemon/store/stores.h"

#include <stdlib.h>

enum {
	STEPS = 256, /* samples that are looked at in a turn: less than a millisecond */
	NEXT_TURN_MS = 10,
	LOOK_MS = 250,
	REST_MS = 1000,
};

/* The order of one or more sessions. */
struct followed {
	uint64_t order;
	unsigned sessions;
	uint64_t from;		      /* of the session that has the most left */
	const struct follower *among; /* any of them */
	LIST_ENTRY(followed) link;
};

struct follower {
	uint32_t session;
	struct store_follower told;
	struct followed *followed;
	uint64_t sample; /* the next one to look at */
	int64_t due_ms;
	TAILQ_ENTRY(follower) link;
};

static struct follower *find(struct stores *stores, uint32_t session)
{
	struct follower *f;

	TAILQ_FOREACH(f, &stores->followers, link)
	if (f->session == session)
		break;
	return f;
}

/* False: out of memory. */
static bool add(struct stores *stores, uint32_t session, const struct store_follower *told)
{
	struct follower *f = malloc(sizeof(*f));
	struct followed *o;

	LIST_FOREACH(o, &stores->followed, link)
	if (o->order == told->order)
		break;
	if (f && !o && (o = calloc(1, sizeof(*o)))) {
		o->order = told->order;
		LIST_INSERT_HEAD(&stores->followed, o, link);
	}
	if (!f || !o) {
		free(f);
		return false;
	}
	o->sessions++;
	*f = (struct follower){.session = session, .told = *told, .followed = o};
	TAILQ_INSERT_HEAD(&stores->followers, f, link);
	return true;
}

static void remove_follower(struct stores *stores, struct follower *f)
{
	if (!f)
		return;
	TAILQ_REMOVE(&stores->followers, f, link);
	if (--f->followed->sessions == 0) {
		LIST_REMOVE(f->followed, link);
		free(f->followed);
	}
	free(f);
}

void store_follow(struct stores *stores, uint32_t session, const struct store_follower *follower)
{
	bool looks;

	pthread_mutex_lock(&stores->following); /* also ends a call that uses the old context */
	remove_follower(stores, find(stores, session));
	looks = follower && add(stores, session, follower) && follower->ahead;
	pthread_mutex_unlock(&stores->following);
	if (!looks)
		return;
	pthread_mutex_lock(&stores->lock);
	stores_wake(stores);
	pthread_mutex_unlock(&stores->lock);
}

/* The ranks of a run are asked once: for what is needed next, only the last of them matters. */
uint64_t followers_next_use(
	const void *context, const char *url, const char *etag, uint64_t at, uint64_t n, bool exact)
{
	struct stores *stores = (struct stores *)context;
	uint64_t least = UINT64_MAX;
	const struct follower *f;
	struct followed *o;

	pthread_mutex_lock(&stores->following);
	LIST_FOREACH(o, &stores->followed, link)
	o->from = UINT64_MAX;
	TAILQ_FOREACH(f, &stores->followers, link)
	{
		uint64_t from = f->told.reached(f->told.context);

		o = f->followed;
		o->from = from < o->from ? from : o->from;
		o->among = f;
	}
	LIST_FOREACH(o, &stores->followed, link)
	{
		const struct store_follower *told = &o->among->told;
		uint64_t use = told->next_use(told->context, o->from, url, etag, at, n, exact);

		least = use < least ? use : least;
	}
	pthread_mutex_unlock(&stores->following);
	return least;
}

/* ---- pieces that are needed later ---- */

/* A piece of one sample. NULL: all are there, or *@busy. */
static struct range *piece_of(
	struct stores *stores, const struct follower *f, const struct store_need *need, bool *busy)
{
	uint32_t piece = need->object.piece;
	struct range *range = NULL;

	*busy = false;
	if (piece == 0 || need->n == 0)
		return NULL;
	for (uint64_t p = need->at / piece; p <= (need->at + need->n - 1) / piece; p++) {
		enum piece_ahead found = piece_ahead(stores, f->session, need, p, &range);

		*busy = found == PIECE_BUSY;
		if (found != PIECE_THERE)
			return range;
	}
	return NULL;
}

/* NULL: none, and f->due_ms is set. */
static struct range *next_piece(struct stores *stores, struct follower *f, int64_t now_ms)
{
	for (unsigned i = 0; i < STEPS; i++, f->sample++) {
		struct store_need need;
		struct range *range;
		bool busy;

		f->due_ms = now_ms + LOOK_MS;
		if (!f->told.ahead(f->told.context, &f->sample, &need))
			return NULL;
		range = piece_of(stores, f, &need, &busy);
		if (busy || range) {
			f->due_ms = now_ms; /* again after the end of a GET */
			return range;
		}
	}
	f->due_ms = now_ms + NEXT_TURN_MS;
	return NULL;
}

struct range *followers_ahead(struct stores *stores, int64_t now_ms, int64_t *due_ms)
{
	struct range *range = NULL;
	struct follower *f;

	*due_ms = INT64_MAX;
	pthread_mutex_lock(&stores->following);
	TAILQ_FOREACH(f, &stores->followers, link)
	{
		if (f->told.ahead && f->due_ms <= now_ms)
			range = next_piece(stores, f, now_ms);
		if (range)
			break;
		int64_t due = f->due_ms > now_ms ? f->due_ms : now_ms + LOOK_MS;

		if (f->told.ahead && due < *due_ms)
			*due_ms = due;
	}
	if (range) { /* sessions take turns */
		TAILQ_REMOVE(&stores->followers, f, link);
		TAILQ_INSERT_TAIL(&stores->followers, f, link);
	}
	pthread_mutex_unlock(&stores->following);
	return range;
}

void followers_rest(struct stores *stores, uint32_t session, int64_t now_ms)
{
	pthread_mutex_lock(&stores->following);
	struct follower *f = find(stores, session);

	if (f)
		f->due_ms = now_ms + REST_MS;
	pthread_mutex_unlock(&stores->following);
}

void followers_free(struct stores *stores)
{
	while (!TAILQ_EMPTY(&stores->followers))
		remove_follower(stores, TAILQ_FIRST(&stores->followers));
}
