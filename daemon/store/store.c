/* The stores of a process, their buckets, and the threads that read. */
#include "daemon/store/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 128, LIMIT_START = 8 };

static _Thread_local uint32_t behalf = LIMIT_SESSIONS; /* no session */
static _Thread_local uint64_t behalf_number;

int64_t stores_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

uint32_t stores_random(void)
{
	uint32_t number;

	return getentropy(&number, sizeof(number)) == 0 ? number : (uint32_t)stores_now_ms();
}

void stores_log(const struct store_options *options, const char *format, ...)
{
	char line[LIMIT_TEXT_BYTES];
	va_list arguments;

	if (!options->log)
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	options->log(line);
}

/* ---- threads that read ---- */

void store_on_behalf(uint32_t session, uint64_t number)
{
	assert(session < LIMIT_SESSIONS || session == STORE_NO_SESSION);
	behalf = session < LIMIT_SESSIONS ? session : LIMIT_SESSIONS;
	behalf_number = number;
}

bool reading_cancelled(const struct reading *reading)
{
	return reading->stores->stopped || reading->stores->cancelled[reading->session] ||
	       stores_now_ms() >= reading->until_ms;
}

void reading_begin(struct reading *reading, struct stores *stores,
	const struct store_bucket *bucket, const char *key)
{
	*reading = (struct reading){
		.stores = stores,
		.session = behalf,
		.number = behalf_number,
		.bucket = (struct store_bucket *)bucket, /* owned by the stores */
		.key = key,
		.wake = PTHREAD_COND_INITIALIZER,
		.since_ms = stores_now_ms(),
		.until_ms = INT64_MAX,
	};
	TAILQ_INSERT_TAIL(&stores->readings, reading, link);
}

void reading_end(struct reading *reading)
{
	assert(!reading->queued && !reading->handle);
	TAILQ_REMOVE(&reading->stores->readings, reading, link);
	pthread_cond_destroy(&reading->wake);
}

void reading_wait(struct reading *reading, int64_t due_ms)
{
	int64_t ms = due_ms < reading->until_ms ? due_ms : reading->until_ms;
	const struct timespec due = {ms / 1000, ms % 1000 * 1000000};

	pthread_cond_clockwait(&reading->wake, &reading->stores->lock, CLOCK_MONOTONIC, &due);
}

void reading_pause(struct reading *reading)
{
	while (stores_now_ms() < reading->due_ms && !reading_cancelled(reading))
		reading_wait(reading, reading->due_ms);
	reading->hasty = HASTY_NO;
}

void readings_hasten(struct store_bucket *bucket, enum hasty cause, uint32_t within_ms)
{
	struct reading *r;

	TAILQ_FOREACH(r, &bucket->stores->readings, link)
	{
		if (r->bucket != bucket)
			continue;
		int64_t due_ms = stores_now_ms() + stores_random() % within_ms;

		if (cause == HASTY_STORE) /* also of those that wait for their turn */
			r->paced = 0;
		if (r->hasty != cause || r->due_ms <= due_ms)
			continue;
		r->due_ms = due_ms;
		pthread_cond_signal(&r->wake);
	}
}

/* The next one of those that wait for their turn, of which there are some. A session's threads run
 * in any order. */
static struct reading *next_turn(const struct store_bucket *bucket)
{
	const uint64_t *turn = bucket->stores->turn;
	struct reading *next = TAILQ_FIRST(&bucket->queue), *r;

	TAILQ_FOREACH(r, &bucket->queue, turn)
	if (turn[r->session] < turn[next->session] ||
		(r->session == next->session && r->number < next->number))
		next = r;
	return next;
}

void bucket_turns(struct store_bucket *bucket)
{
	struct store_status *status = &bucket->status;
	struct reading *r;

	while (!TAILQ_EMPTY(&bucket->queue) && status->in_flight < bucket->limit.now) {
		r = next_turn(bucket);

		/* A range that is larger than the memory is fetched alone. */
		if (!shared_make_room(bucket, r->bytes) && status->in_flight > 0)
			return;
		bucket->stores->turn[r->session] = ++bucket->stores->turns;
		r->queued = false;
		TAILQ_REMOVE(&bucket->queue, r, turn);
		status->in_flight++;
		bucket->body_bytes += r->bytes;
		pthread_cond_signal(&r->wake);
	}
}

/* Wakes all threads of a session; STORE_NO_SESSION: of all. They are cancelled. */
static void wake_readings(struct stores *stores, uint32_t session)
{
	struct reading *r;

	TAILQ_FOREACH(r, &stores->readings, link)
	{
		if (session != STORE_NO_SESSION && r->session != session)
			continue;
		if (r->handle)
			stores->curl->multi_wakeup(r->handle->multi);
		pthread_cond_signal(&r->wake);
	}
}

void store_allow(struct stores *stores, uint32_t session)
{
	stores->cancelled[session] = false;
}

void store_cancel(struct stores *stores, uint32_t session)
{
	pthread_mutex_lock(&stores->lock);
	stores->cancelled[session] = true;
	wake_readings(stores, session);
	pthread_mutex_unlock(&stores->lock);
}

void store_stop(struct stores *stores)
{
	pthread_mutex_lock(&stores->lock);
	stores->stopped = true;
	wake_readings(stores, STORE_NO_SESSION);
	pthread_mutex_unlock(&stores->lock);
}

void store_patience(struct stores *stores, int64_t patience_ms)
{
	stores->options.patience_ms = patience_ms;
}

/* ---- buckets ---- */

static struct store_bucket *bucket_new(
	struct stores *stores, const struct url_place *place, struct fault *fault)
{
	unsigned most =
		place->store && place->store->connections ? place->store->connections : CONNECTIONS;
	struct store_bucket *bucket;

	if (!stores->curl && !(stores->curl = curl_load(fault)))
		return NULL;
	bucket = calloc(1, sizeof(*bucket));
	if (!bucket) {
		fault_memory(fault);
		return NULL;
	}
	bucket->stores = stores;
	bucket->place = *place;
	bucket->limit.most = most;
	bucket->limit.now = most < LIMIT_START ? most : LIMIT_START;
	TAILQ_INIT(&bucket->kept);
	TAILQ_INIT(&bucket->queue);
	snprintf(bucket->status.name, sizeof(bucket->status.name), "%.159s", place->name);
	if (wallet_open(bucket, fault))
		return bucket;
	free(bucket);
	return NULL;
}

const struct store_bucket *store_bucket(
	struct stores *stores, const char *url, const char **key, struct fault *fault)
{
	struct store_bucket *bucket, **at = &stores->buckets;
	struct url_place place;

	if (!url_place(stores->options.config, url, &place, key, fault))
		return NULL;
	pthread_mutex_lock(&stores->adding); /* files are read, and libcurl is loaded */
	while (*at && strcmp((*at)->place.name, place.name) != 0)
		at = &(*at)->next;
	bucket = *at ? *at : bucket_new(stores, &place, fault);
	if (bucket && !*at) {
		pthread_mutex_lock(&stores->lock);
		bucket->number = stores->bucket_count++;
		*at = bucket;
		pthread_mutex_unlock(&stores->lock);
	}
	pthread_mutex_unlock(&stores->adding);
	return bucket;
}

unsigned store_number(const struct store_bucket *bucket)
{
	return bucket->number;
}

/* ---- opening and closing ---- */

struct stores *store_open(const struct store_options *options, struct fault *fault)
{
	struct stores *stores = calloc(1, sizeof(*stores));
	const struct config *config = options->config;
	bool caches = options->cache && config && config->cache_dir;
	struct fault cause;

	if (!stores) {
		fault_memory(fault);
		return NULL;
	}
	stores->options = *options;
	pthread_mutex_init(&stores->adding, NULL);
	pthread_mutex_init(&stores->lock, NULL);
	TAILQ_INIT(&stores->readings);
	pthread_cond_init(&stores->helpers, NULL);
	if (caches)
		stores->cache = store_cache_open(
			config->cache_dir, config->cache_bytes, &stores->options, &cause);
	if (!caches || stores->cache)
		return stores;
	config_refuse(fault, config->path, config->cache_line, cause.field, "%s", cause.text);
	store_close(stores);
	return NULL;
}

void store_close(struct stores *stores)
{
	if (!stores)
		return;
	assert(TAILQ_EMPTY(&stores->readings));
	pthread_mutex_lock(&stores->lock);
	stores->closing = true;
	pthread_cond_broadcast(&stores->helpers);
	pthread_mutex_unlock(&stores->lock);
	store_cache_close(stores->cache);
	while (stores->buckets) {
		struct store_bucket *bucket = stores->buckets;

		stores->buckets = bucket->next;
		pthread_join(bucket->wallet.thread, NULL);
		while (shared_drop_oldest(bucket))
			continue;
		get_free_spares(bucket);
		free(bucket);
	}
	pthread_cond_destroy(&stores->helpers);
	pthread_mutex_destroy(&stores->lock);
	pthread_mutex_destroy(&stores->adding);
	free(stores);
}

/* ---- for status and metrics ---- */

static void describe(const struct reading *r, char *text, size_t text_bytes)
{
	const struct store_bucket *bucket = r->bucket;
	const char *reason = "no answer yet", *slash = strrchr(r->key, '/');

	if (r->reason[0])
		reason = r->reason;
	else if (bucket->fails_since_ms != 0 && bucket->status.last[0])
		reason = bucket->status.last;
	snprintf(text, text_bytes, "%s%s%.*s: %s", bucket->place.name, slash ? "/" : "",
		slash ? (int)(slash - r->key) : 0, r->key, reason);
}

unsigned store_waits(struct stores *stores, uint32_t session, char *text, size_t text_bytes)
{
	unsigned seconds = 0;
	const struct reading *r;

	pthread_mutex_lock(&stores->lock);
	TAILQ_FOREACH(r, &stores->readings, link)
	if (r->session == session)
		break;
	if (r)
		seconds = (unsigned)((stores_now_ms() - r->since_ms) / 1000);
	if (seconds > 0)
		describe(r, text, text_bytes);
	pthread_mutex_unlock(&stores->lock);
	return seconds;
}

bool store_status(struct stores *stores, unsigned i, struct store_status *status)
{
	const struct reading *r;
	struct store_bucket *bucket;

	pthread_mutex_lock(&stores->lock);
	for (bucket = stores->buckets; bucket && i > 0; i--)
		bucket = bucket->next;
	if (bucket) {
		const struct wallet *wallet = &bucket->wallet;

		*status = bucket->status;
		memcpy(status->provider, wallet->now.provider, sizeof(status->provider));
		status->expires_s = wallet_left_s(wallet);
		status->limit = bucket->limit.now;
		TAILQ_FOREACH(r, &stores->readings, link)
		status->waiting += r->bucket == bucket;
		status->last_ago_s =
			bucket->fault_ms ? (stores_now_ms() - bucket->fault_ms) / 1000 : 0;
	}
	pthread_mutex_unlock(&stores->lock);
	return bucket;
}
