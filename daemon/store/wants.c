#include "daemon/store/stores.h"

#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

const struct fault want_cancelled = {
	.code = FAULT_IO,
	.error = ECANCELED,
	.index = FAULT_NO_INDEX,
	.field = "",
	.text = "the read was cancelled",
};
const struct fault want_no_memory = {
	.code = FAULT_IO,
	.error = EREMOTEIO,
	.index = FAULT_NO_INDEX,
	.field = "memory",
	.text = PHRASE_MEMORY,
};

/* With the lock, so that nobody is called after store_listen() has returned. */
void stores_tell(struct stores *stores)
{
	pthread_mutex_lock(&stores->lock);
	if (stores->news)
		stores->news(stores->news_context);
	pthread_mutex_unlock(&stores->lock);
}

/* Removes it from the list of its state. */
static void unlink_want(struct stores *stores, struct want *want)
{
	switch (want->state) {
	case WANT_ARRIVED:
		TAILQ_REMOVE(&stores->arrived, want, link);
		break;
	case WANT_JOINED:
		TAILQ_REMOVE(&want->range->wants, want, link);
		break;
	case WANT_QUEUED:
	case WANT_DONE:
		assert(!"in a list of the lock");
	}
	if (want->session) /* NULL: out of memory */
		TAILQ_REMOVE(&want->session->wants, want, of_session);
}

bool want_end(struct stores *stores, struct want *want, const struct fault *fault)
{
	unlink_want(stores, want);
	assert(fault || want->range);
	if (fault == &want_cancelled || fault == &want_no_memory)
		want->range = NULL;
	if (want->range)
		want->range->references++;
	if (!fault && want->range)
		want->range->bucket->status.used_bytes += want->n;
	want->fault = fault;
	want->state = WANT_DONE;
	if (want->ended) {
		pthread_cond_signal(want->ended);
		return false;
	}
	bool first = TAILQ_EMPTY(&stores->done);

	TAILQ_INSERT_TAIL(&stores->done, want, link);
	return first;
}

bool wants_cancel(struct stores *stores, struct session *session)
{
	struct want *want;
	bool news = false;

	while ((want = TAILQ_FIRST(&session->wants))) {
		struct range *range = want->state == WANT_JOINED ? want->range : NULL;

		news |= want_end(stores, want, &want_cancelled);
		if (range && TAILQ_EMPTY(&range->wants))
			range_abandon(range);
	}
	return news;
}

void want_leave(struct stores *stores, struct want *want)
{
	struct range *range = want->range;

	if (!range)
		return;
	want->range = NULL;
	if (range->bucket->starved) {
		range->bucket->starved = false;
		stores_wake(stores);
	}
	range_unref(range);
}

bool want_arrive(struct stores *stores, struct want *want)
{
	struct session *session = session_find(stores, want->session_id);

	assert(want->n > 0 && want->object.bucket);
	want->since_ms = stores_now_ms();
	want->range = NULL;
	want->session = session;
	want->state = WANT_ARRIVED;
	TAILQ_INSERT_TAIL(&stores->arrived, want, link);
	if (session)
		TAILQ_INSERT_TAIL(&session->wants, want, of_session);
	if (session && !session->cancelled && !stores->stopped) {
		stores_wake(stores);
		return false;
	}
	return want_end(stores, want, session ? &want_cancelled : &want_no_memory);
}
