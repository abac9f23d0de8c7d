/* Reports about stores: for status, metrics, and trainers that wait. */
#include "daemon/store/stores.h"

#include <stdio.h>
#include <string.h>

static void describe(const struct want *want, char *text, size_t text_bytes)
{
	const struct store_bucket *bucket = want->object.bucket;
	const struct range *range = want->state == WANT_JOINED ? want->range : NULL;
	const char *reason = "no answer yet";

	if (range)
		bucket = range->bucket;
	if (bucket->waits_for[0])
		reason = bucket->waits_for;
	else if (range && range->reason[0])
		reason = range->reason;
	else if (bucket->fails_since_ms != 0 && bucket->status.last[0])
		reason = bucket->status.last;
	const char *key = range ? range->key : want->object.key, *slash = strrchr(key, '/');

	snprintf(text, text_bytes, "%s%s%.*s: %s", bucket->place.name, slash ? "/" : "",
		slash ? (int)(slash - key) : 0, key, reason);
}

unsigned store_waits(struct stores *stores, uint32_t session, char *text, size_t text_bytes)
{
	const struct want *want = NULL;
	unsigned seconds = 0;

	pthread_mutex_lock(&stores->lock);
	struct session *found = stores->session[session % SESSIONS_CHAINS];

	while (found && found->id != session)
		found = found->next;
	if (found)
		want = TAILQ_FIRST(&found->wants);
	if (want)
		seconds = (unsigned)((stores_now_ms() - want->since_ms) / 1000);
	if (seconds > 0)
		describe(want, text, text_bytes);
	pthread_mutex_unlock(&stores->lock);
	return seconds;
}

unsigned store_number(const struct store_bucket *bucket)
{
	struct stores *stores = bucket->stores;
	unsigned number = 0;

	pthread_mutex_lock(&stores->lock);
	for (const struct store_bucket *b = stores->buckets; b != bucket; b = b->next)
		number++;
	pthread_mutex_unlock(&stores->lock);
	return number;
}

static unsigned count_waiting(const struct store_bucket *bucket)
{
	const struct stores *stores = bucket->stores;
	unsigned n = 0;

	for (unsigned i = 0; i < SESSIONS_CHAINS; i++)
		for (const struct session *s = stores->session[i]; s; s = s->next) {
			const struct want *want;

			TAILQ_FOREACH(want, &s->wants, of_session)
			n += (want->state == WANT_JOINED ? want->range->bucket
							 : want->object.bucket) == bucket;
		}
	return n;
}

bool store_cache_status(struct stores *stores, struct store_cache_status *status)
{
	if (!stores->cache)
		return false;
	store_cache_state(stores->cache, status);
	return true;
}

bool store_status(struct stores *stores, unsigned i, struct store_status *status)
{
	struct store_bucket *bucket;

	pthread_mutex_lock(&stores->lock);
	for (bucket = stores->buckets; bucket && i > 0; i--)
		bucket = bucket->next;
	if (bucket) {
		*status = bucket->status;
		status->limit = bucket->limit.now;
		status->waiting = count_waiting(bucket);
		status->last_ago_s =
			bucket->fault_ms ? (stores_now_ms() - bucket->fault_ms) / 1000 : 0;
	}
	pthread_mutex_unlock(&stores->lock);
	if (bucket)
		wallet_status(bucket->wallet, status->provider, &status->expires_s);
	return bucket;
}

bool store_cached(struct stores *stores,
	void (*each)(void *context, const char *url, uint64_t pieces, uint64_t bytes),
	void *context)
{
	if (!stores->cache)
		return false;
	store_cache_list(stores->cache, each, context);
	return true;
}

uint64_t store_uncache(struct stores *stores, const char *url, uint64_t most)
{
	return stores->cache ? store_cache_drop(stores->cache, url, most) : 0;
}
