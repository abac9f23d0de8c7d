/* Reads of threads that may block. */
#include "daemon/store/ask.h"
#include "daemon/store/stores.h"

#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 8 * 1024 * 1024, LOAD_BYTES = 1024 * 1024, LOADS = 5 };

static _Thread_local uint32_t behalf = STORE_NO_SESSION;

void store_on_behalf(uint32_t session)
{
	behalf = session;
}

bool store_is_cancelled(struct stores *stores)
{
	pthread_mutex_lock(&stores->lock);
	struct session *session = session_find(stores, behalf);
	bool cancelled = stores->stopped || (session && session->cancelled);

	pthread_mutex_unlock(&stores->lock);
	return cancelled;
}

static void wait_for(struct stores *stores, struct want *want)
{
	while (want->state != WANT_DONE)
		pthread_cond_wait(want->ended, &stores->lock);
}

/* The end of a blocked want, without the lock. */
static bool finish(struct stores *stores, struct want *want, struct fault *fault)
{
	bool done = !want->fault;

	if (!done)
		*fault = *want->fault;
	pthread_cond_destroy(want->ended);
	if (!want->range)
		return done;
	pthread_mutex_lock(&stores->lock);
	want_leave(stores, want);
	pthread_mutex_unlock(&stores->lock);
	return done;
}

/* One GET, which others may share. */
static bool read_part(struct stores *stores, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	struct want want = {
		.object = *object, .at = at, .n = n, .session_id = behalf, .ended = &ended};

	pthread_mutex_lock(&stores->lock);
	want_arrive(stores, &want);
	wait_for(stores, &want);
	pthread_mutex_unlock(&stores->lock);
	if (!want.fault)
		memcpy(to, want.range->body + want.offset, n);
	return finish(stores, &want, fault);
}

/* Fetches the piece that has bytes [at, at + n), copies these, and gives it to the cache. */
static bool fetch_piece(struct stores *stores, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	uint64_t number = at / object->piece, from = number * object->piece;
	struct want want = {.object = *object,
		.at = from,
		.n = cache_piece_bytes(object->size, object->piece, number),
		.session_id = behalf,
		.piece = true,
		.ended = &ended};

	pthread_mutex_lock(&stores->lock);
	want_arrive(stores, &want);
	wait_for(stores, &want);
	if (!want.fault)
		want.range->bucket->status.used_bytes -= want.n - n;
	pthread_mutex_unlock(&stores->lock);
	if (!want.fault) {
		const char *body = want.range->body + want.offset;

		memcpy(to, body + (at - from), n);
		store_cache_put(stores->cache, &object->bucket->place, object, number, body);
	}
	return finish(stores, &want, fault);
}

/* The pieces of earlier daemons are looked for at the start. False: cancelled. */
static bool wait_for_cache(struct stores *stores, struct fault *fault)
{
	const struct timespec pause = {0, 20 * 1000 * 1000};

	while (!store_cache_ready(stores->cache)) {
		if (store_is_cancelled(stores)) {
			*fault = want_cancelled;
			return false;
		}
		nanosleep(&pause, NULL);
	}
	return true;
}

/* Reads bytes of one piece: from the cache, otherwise by a GET. */
static bool read_piece(struct stores *stores, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	if (!wait_for_cache(stores, fault))
		return false;
	if (store_cache_read(stores->cache, &object->bucket->place, object, at, to, n)) {
		bucket_used(object, n);
		return true;
	}
	return (store_cache_takes(stores->cache) ? fetch_piece : read_part)(
		stores, object, at, to, n, fault);
}

bool store_read(struct stores *stores, const struct object *object, uint64_t at, void *to, size_t n,
	struct fault *fault)
{
	bool pieces = stores->cache && object->piece > 0;
	char *into = to;

	assert(at + n >= at && (object->size == STORE_SIZE_UNKNOWN || at + n <= object->size));
	while (n > 0) {
		uint64_t most = pieces ? object->piece - at % object->piece : READ_BYTES;
		size_t part = n < most ? n : most;

		if (!(pieces ? read_piece : read_part)(stores, object, at, into, part, fault))
			return false;
		into += part;
		at += part;
		n -= part;
	}
	return true;
}

/* ---- requests of their own ---- */

static bool ask_start(struct stores *stores, const struct ask *ask, struct want *want)
{
	const struct object object = {
		.bucket = ask->bucket, .key = ask->key, .etag = ask->etag, .size = ask->size};
	struct session *session = session_find(stores, want->session_id);
	struct range *range = NULL;

	if (session && session_line(session, (struct store_bucket *)ask->bucket))
		range = range_new(&object, ask->query, 0);
	if (!range) {
		want->state = WANT_DONE;
		want->fault = &want_no_memory;
		return false;
	}
	range->kind = ask->want;
	range->once = true;
	range->at = ask->at;
	range->n = ask->n;
	want->session = session;
	want->since_ms = range->since_ms;
	want->at = ask->at;
	TAILQ_INSERT_TAIL(&session->wants, want, of_session);
	range_join(range, want);
	range_wait(range, session, false);
	if (session->cancelled || stores->stopped) {
		want_end(stores, want, &want_cancelled);
		range_abandon(range);
	}
	stores_wake(stores);
	return true;
}

bool store_ask(
	struct stores *stores, const struct ask *ask, struct asked *answer, struct fault *fault)
{
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	struct want want = {.session_id = behalf, .ended = &ended};

	*answer = (struct asked){.size = STORE_SIZE_UNKNOWN};
	pthread_mutex_lock(&stores->lock);
	if (ask_start(stores, ask, &want))
		wait_for(stores, &want);
	if (!want.fault) {
		struct range *range = want.range;

		answer->n = range->body_n;
		answer->size = range->answer_size;
		memcpy(answer->etag, range->answer_etag, sizeof(answer->etag));
		if (ask->want != VERDICT_HEAD)
			answer->body = range_take_body(range);
	}
	pthread_mutex_unlock(&stores->lock);
	return finish(stores, &want, fault);
}

bool store_head(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t *size, char etag[STORE_ETAG_BYTES], struct fault *fault)
{
	const struct ask ask = {
		.bucket = bucket,
		.key = key,
		.query = "",
		.size = STORE_SIZE_UNKNOWN,
		.want = VERDICT_HEAD,
	};
	struct asked answer;

	if (!store_ask(stores, &ask, &answer, fault))
		return false;
	if (answer.size == STORE_SIZE_UNKNOWN)
		return fault_errno(fault, EREMOTEIO, "",
			"%s/%s: the server does not say how many bytes it has", bucket->place.name,
			key);
	*size = answer.size;
	memcpy(etag, answer.etag, STORE_ETAG_BYTES);
	return true;
}

/* ---- small objects ---- */

struct loading {
	struct ask ask;
	uint64_t size;
	char etag[STORE_ETAG_BYTES];
	char *body; /* [size + 1] */
	size_t n;
};

/* The first part also says how long the object is. */
static bool load_first(struct stores *stores, struct loading *l, uint64_t most, struct fault *fault)
{
	const char *bucket = l->ask.bucket->place.name;
	struct asked answer;

	l->ask.want = VERDICT_BEGIN;
	l->ask.etag = NULL;
	l->ask.size = STORE_SIZE_UNKNOWN;
	l->ask.at = 0;
	l->ask.n = LOAD_BYTES;
	if (!store_ask(stores, &l->ask, &answer, fault))
		return false;
	l->body = answer.body;
	l->n = answer.n;
	l->size = answer.size;
	memcpy(l->etag, answer.etag, sizeof(l->etag));
	if (l->size == STORE_SIZE_UNKNOWN || l->size < l->n)
		return fault_errno(fault, EREMOTEIO, "",
			"%s/%s: the server does not say how many bytes it has", bucket, l->ask.key);
	if (l->size > most)
		return fault_set(fault, FAULT_DATA, "",
			"%s/%s: %" PRIu64 " bytes, at most %" PRIu64 " are allowed", bucket,
			l->ask.key, l->size, most);
	char *body = realloc(l->body, l->size + 1);

	if (!body)
		return fault_memory(fault);
	l->body = body;
	body[l->size] = 0;
	return true;
}

static bool load_next(struct stores *stores, struct loading *l, struct fault *fault)
{
	uint64_t left = l->size - l->n;
	struct asked answer;

	l->ask.want = VERDICT_RANGE;
	l->ask.etag = l->etag[0] ? l->etag : NULL;
	l->ask.size = l->size;
	l->ask.at = l->n;
	l->ask.n = left < LOAD_BYTES ? left : LOAD_BYTES;
	if (!store_ask(stores, &l->ask, &answer, fault))
		return false;
	memcpy(l->body + l->n, answer.body, answer.n);
	l->n += answer.n;
	free(answer.body);
	return true;
}

static bool load(struct stores *stores, struct loading *l, uint64_t most, struct fault *fault)
{
	bool loaded = load_first(stores, l, most, fault);

	while (loaded && l->n < l->size)
		loaded = load_next(stores, l, fault);
	if (!loaded) {
		free(l->body);
		l->body = NULL;
	}
	return loaded;
}

char *store_load(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t most, size_t *n, char etag[STORE_ETAG_BYTES], struct fault *fault)
{
	struct loading l = {.ask = {.bucket = bucket, .key = key, .query = ""}};

	for (int i = 0; i < LOADS; i++) {
		if (load(stores, &l, most, fault)) {
			*n = l.n;
			memcpy(etag, l.etag, STORE_ETAG_BYTES);
			return l.body;
		}
		if (fault->code != FAULT_CHANGED || l.n == 0)
			return NULL;
		l.n = 0;
	}
	fault_set(fault, FAULT_CHANGED, "", "%s/%s " PHRASE_CHANGED, bucket->place.name, key);
	return NULL;
}
