/*
 * Reads. Each is made by the calling thread, which blocks: credentials, its turn, a GET, and again
 * after a pause, until a GET succeeds or a fault is final. Threads that want the same bytes share
 * one GET, and windows are kept in memory for others that come later.
 */
#include "daemon/store/internal.h"

#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	READ_BYTES = 8 * 1024 * 1024,
	LOG_MS = 60 * 1000,
	RECOVERED_MS = 10 * 1000,
	RECOVERED_WITHIN_MS = 1000,
	CLOCK_NEWS_S = 60,
	TICK_MS = 1000,
	LIMIT_LEAST = 4,
	LIMIT_HALVED_MS = 1000,
	PAUSE_FIRST_MS = 100,
	PAUSE_MOST_MS = 20 * 1000,
	OTHER_TRIES = 3, /* GETs in a row, in 10 s, of an object that is another or denied */
	OTHER_MS = 5 * 1000,
	HEAD_MS = 2 * 1000,
	STOP = -1,
	SHARED_NUMBERS_BYTES = 100, /* of the five in a name, and what is between them */
};

/* Always false. */
static bool cancel(struct fault *fault)
{
	return fault_errno(fault, ECANCELED, "", "the read was cancelled");
}

/* Always false. */
static bool no_memory(struct fault *fault)
{
	return fault_errno(fault, EREMOTEIO, "memory", PHRASE_MEMORY);
}

/* ---- one GET's consequences for its bucket; with the lock ---- */

/* A GET was answered while @in_flight of them, itself included, were in flight. A limit that is not
 * used does not grow. */
static void limit_answered(struct limit *limit, unsigned in_flight)
{
	assert(limit->now >= 1 && limit->now <= limit->most);
	if (limit->now == limit->most || 2 * in_flight < limit->now)
		return;
	limit->answers++;
	if (limit->halved_ms > 0 && limit->answers < limit->now)
		return;
	limit->now++;
	limit->answers = 0;
}

/* The store asked to slow down, or did not answer in time. */
static void limit_overload(struct limit *limit, int64_t now_ms)
{
	unsigned least = limit->most < LIMIT_LEAST ? limit->most : LIMIT_LEAST,
		 half = limit->now / 2;

	if (limit->halved_ms > 0 && now_ms - limit->halved_ms < LIMIT_HALVED_MS)
		return;
	limit->now = half > least ? half : least;
	limit->answers = 0;
	limit->halved_ms = now_ms;
}

static void count(struct store_bucket *bucket, const struct get *get)
{
	struct store_status *status = &bucket->status;
	int64_t ms = get->answered_ms ? get->answered_ms - get->begun_ms : 0;
	unsigned i = 0;

	status->bytes += get->n;
	if (get->answer.status) {
		while (i < STORE_TIMES - 1 && ms > (1 << i))
			i++;
		status->first_byte[i]++;
		status->first_byte_seconds += (double)ms / 1000;
	}
	if (get->verdict.kind == VERDICT_GOOD)
		return;
	status->faults[get->timed_out ? 0 : get->answer.status]++;
	snprintf(status->last, sizeof(status->last), "%.159s", get->verdict.reason);
	bucket->fault_ms = stores_now_ms();
}

/* Logs a line. Unlocks meanwhile: what the arguments name must not be shared. */
#define SAY(bucket, ...)                                                                           \
	(pthread_mutex_unlock(&(bucket)->stores->lock),                                            \
		stores_log(&(bucket)->stores->options, __VA_ARGS__),                               \
		pthread_mutex_lock(&(bucket)->stores->lock))

static void succeeded(struct store_bucket *bucket, const struct get *get)
{
	int64_t since_ms = bucket->fails_since_ms;
	int64_t failed_ms = since_ms ? stores_now_ms() - since_ms : 0;

	if (get->begun_ms > bucket->success_begun_ms)
		bucket->success_begun_ms = get->begun_ms;
	limit_answered(&bucket->limit, bucket->status.in_flight);
	bucket->fails_since_ms = 0;
	if (failed_ms >= RECOVERED_WITHIN_MS)
		readings_hasten(bucket, HASTY_STORE, RECOVERED_WITHIN_MS);
	if (failed_ms >= RECOVERED_MS)
		SAY(bucket, "%s: answers again after %" PRId64 " s", bucket->place.name,
			failed_ms / 1000);
}

/* @key NULL: nothing is logged, because the fault is final. */
static void failed(struct store_bucket *bucket, const char *key, const struct get *get)
{
	int64_t now = stores_now_ms();
	enum verdict_kind kind = get->verdict.kind;
	int64_t *offset = &bucket->wallet.clock_offset_s; /* the server's clock minus ours */

	bucket->status.retries += key != NULL;
	if (key && bucket->fails_since_ms == 0)
		bucket->fails_since_ms = now;
	if (get->verdict.overload)
		limit_overload(&bucket->limit, now);
	/* There may be others since. */
	if ((kind == VERDICT_EXPIRED || kind == VERDICT_DENIED) &&
		get->serial == bucket->wallet.now.serial)
		wallet_hurry(&bucket->wallet);
	int64_t offset_s = get->answer.date - (int64_t)time(NULL), was_s = *offset;

	if (kind == VERDICT_CLOCK && get->answer.date)
		*offset = offset_s;
	/* GETs that were signed before bring the same. */
	if (llabs(*offset - was_s) > CLOCK_NEWS_S) {
		SAY(bucket,
			"%s: the clocks differ by %" PRId64
			" s; requests are signed with the store's time; set this machine's clock",
			bucket->place.name, offset_s);
	} else if (key && (bucket->logged_ms == 0 || now - bucket->logged_ms >= LOG_MS)) {
		bucket->logged_ms = now;
		SAY(bucket, "%s/%.150s: %.120s; retrying", bucket->place.name, key,
			get->verdict.reason);
	}
}

/* ---- one object's GETs; with the lock ---- */

/* Waits for credentials. If they were found expired, perhaps a clock is wrong: the answer to a GET
 * says it. False: @fault. */
static bool wait_for_credentials(struct reading *r, struct fault *fault)
{
	struct wallet *wallet = &r->bucket->wallet;
	int64_t patience = r->stores->options.patience_ms;

	while (wallet->now.serial == 0 ||
		(wallet_left_s(wallet) <= 0 && !(wallet->last == PROVIDED && wallet->failures))) {
		bool any = wallet->now.serial > 0, said = wallet->last >= PROVIDED_LATER;

		if (reading_cancelled(r))
			return cancel(fault);
		*fault = wallet->fault;
		if (!any && wallet->last == PROVIDED_WRONG)
			return false;
		if (any)
			wallet_hurry(wallet); /* a clock was set, so they are not due yet */
		snprintf(
			r->reason, sizeof(r->reason), "%.159s", said ? fault->text : "credentials");
		if (patience > 0 && stores_now_ms() - r->since_ms > patience)
			return fault_errno(fault, EREMOTEIO, "", "%s: waited %d s for %s",
				r->bucket->place.name, (int)(patience / 1000), r->reason);
		r->hasty = HASTY_CREDENTIALS;
		r->due_ms = stores_now_ms() + TICK_MS;
		reading_pause(r);
		r->reason[0] = 0;
	}
	return true;
}

/* Waits until a GET may begin, of which r->bytes are kept in memory. False: @fault. */
static bool wait_for_turn(struct reading *r, struct fault *fault)
{
	r->bytes = r->asked.want == VERDICT_RANGE ? r->asked.n : 0;
	r->queued = true;
	TAILQ_INSERT_TAIL(&r->bucket->queue, r, turn);
	bucket_turns(r->bucket);
	while (r->queued && !reading_cancelled(r))
		reading_wait(r, INT64_MAX);
	if (!r->queued)
		return true;
	TAILQ_REMOVE(&r->bucket->queue, r, turn);
	r->queued = false;
	return cancel(fault);
}

/* Of a fault that is final. */
static enum fault_code code_of(const struct verdict *v)
{
	return v->kind == VERDICT_DENIED || v->kind == VERDICT_EXPIRED ? FAULT_PERMISSION
	       : v->kind == VERDICT_OTHER			       ? FAULT_CHANGED
								       : FAULT_IO;
}

/* A fault that is final: "s3://corpus/x.bin: REASON; REMEDY". @others: other objects are readable.
 * @waited_ms: how long it was waited for; 0: not at all. */
static void fail(const struct reading *r, const struct get *get, bool others, int64_t waited_ms,
	struct fault *fault)
{
	const struct verdict *v = &get->verdict;
	const char *provider = r->bucket->wallet.now.provider;
	char more[300] = "";

	if (waited_ms > 0) {
		snprintf(more, sizeof(more), ", for %" PRId64 " s", waited_ms / 1000);
	} else if (v->kind == VERDICT_DENIED && others) {
		strcpy(more, ", while other objects are readable: it is missing, or may not be "
			     "read");
	} else if (v->kind == VERDICT_DENIED) {
		snprintf(more, sizeof(more), " (credentials: %s)", provider[0] ? provider : "none");
	}
	fault_set(fault, code_of(v), "", "%s/%s: %s%s%s%s", r->bucket->place.name, r->key,
		v->reason, more, v->remedy[0] ? "; " : "", v->remedy);
	if (fault->code == FAULT_IO)
		fault->error = EREMOTEIO;
}

/* The pause before the next GET; STOP: the fault is final. @others: GETs of other objects succeeded
 * since this one was first denied. */
static int64_t pause_ms(struct reading *r, const struct get *get, bool others)
{
	enum verdict_kind kind = get->verdict.kind;
	bool none = r->bucket->success_begun_ms == 0; /* yet: a gateway may not know the key */
	bool expired = wallet_left_s(&r->bucket->wallet) <= 0; /* others are looked for */
	/* Tools can be called again, so that an object is missing is said at once. */
	bool listed = r->asked.etag && r->stores->options.patience_ms == 0;

	if (kind == VERDICT_FINAL || (kind == VERDICT_UNTRUSTED && none))
		return STOP;
	if (kind == VERDICT_OTHER || (kind == VERDICT_DENIED && (others || (none && !expired)))) {
		if (!listed || ++r->other >= OTHER_TRIES)
			return STOP;
		return OTHER_MS - stores_random() % (OTHER_MS / 4);
	}
	/* Those before and after an outage are not in a row. */
	if (kind != VERDICT_DENIED)
		r->other = 0;
	/* Full jitter: any time up to a bound that doubles. */
	int64_t most = (int64_t)PAUSE_FIRST_MS << (r->paced < 8 ? r->paced : 8);
	int64_t wait = stores_random() % (most < PAUSE_MOST_MS ? most : PAUSE_MOST_MS);
	int64_t least = (int64_t)get->answer.retry_after_s * 1000;

	r->paced++;
	return wait > least ? wait : least;
}

/* Judges a GET that failed. Returns when to try again; negative: @fault, it is final. */
static int64_t judge(struct reading *r, const struct get *get, struct fault *fault)
{
	struct store_bucket *bucket = r->bucket;
	const struct verdict *v = &get->verdict;
	int64_t patience = bucket->stores->options.patience_ms, now = stores_now_ms();
	int64_t end = r->since_ms + patience, away = bucket->fails_since_ms;

	if (v->kind == VERDICT_DENIED && r->denied_ms == 0)
		r->denied_ms = now;
	/* GETs that began before prove nothing: the right to read all may have been lost then.
	 * Wrong keys do not concern one object: servers may learn a new key one by one. */
	bool others = r->denied_ms && bucket->success_begun_ms > r->denied_ms && !v->keys;

	r->timeouts += get->timed_out;
	if (v->kind == VERDICT_DENIED || v->kind == VERDICT_EXPIRED)
		r->hasty = HASTY_CREDENTIALS;
	else if (v->kind == VERDICT_HEALS && get->answer.retry_after_s == 0)
		r->hasty = HASTY_STORE;
	r->fresh = get->answer.status < 300 || get->timed_out; /* none, or a wrong one */
	snprintf(r->reason, sizeof(r->reason), "%.95s", v->reason);

	int64_t wait = pause_ms(r, get, others);

	/* Nobody waits again for a store that is away. */
	if (v->kind == VERDICT_HEALS && away != 0 && away < r->since_ms)
		end = away + patience;
	if (wait == STOP || (patience > 0 && now >= end)) {
		fail(r, get, others, wait == STOP ? 0 : patience, fault);
		return -1;
	}
	return patience > 0 && now + wait > end ? end : now + wait;
}

/* Makes GETs until one succeeds, which the caller releases. False: @fault. */
static bool fetch(struct reading *r, struct fault *fault)
{
	struct store_bucket *bucket = r->bucket;
	const struct get *get = &r->get;

	while (r->due_ms >= 0 && wait_for_credentials(r, fault) && wait_for_turn(r, fault)) {
		if (!get_make(r))
			return no_memory(fault);
		if (reading_cancelled(r) && get->verdict.kind != VERDICT_GOOD) {
			get_release(r);
			return cancel(fault);
		}
		count(bucket, get);
		if (get->verdict.kind == VERDICT_GOOD) {
			succeeded(bucket, get);
			return true;
		}
		r->due_ms = judge(r, get, fault);
		failed(bucket, r->due_ms >= 0 ? r->key : NULL, get);
		get_release(r);
		reading_pause(r);
	}
	return false;
}

/* ---- shared bytes; with the lock ---- */

/* The list that has @name, if any has. */
static struct shared_list *list_of(struct stores *stores, const char *name)
{
	uint32_t hash = 0;

	while (*name)
		hash = hash * 31 + (uint8_t)*name++;
	return &stores->shared[hash % (sizeof(stores->shared) / sizeof(*stores->shared))];
}

static void shared_free(struct shared *s)
{
	assert(s->references == 0 && !s->fetched);
	LIST_REMOVE(s, same);
	if (s->body)
		s->bucket->body_bytes -= s->n;
	free(s->body);
	free(s);
}

bool shared_drop_oldest(struct store_bucket *bucket)
{
	struct shared *s = TAILQ_FIRST(&bucket->kept);

	if (!s)
		return false;
	TAILQ_REMOVE(&bucket->kept, s, link);
	shared_free(s);
	return true;
}

bool shared_make_room(struct store_bucket *bucket, uint64_t bytes)
{
	const struct stores *stores = bucket->stores;
	uint64_t most = stores->options.memory_bytes / stores->bucket_count;

	while (bucket->body_bytes + bytes > most && shared_drop_oldest(bucket))
		continue;
	return bucket->body_bytes + bytes <= most;
}

/* Finds or makes it, with a reference. NULL: out of memory. */
static struct shared *share(const struct object *object, uint64_t at, size_t n, bool piece)
{
	struct store_bucket *bucket = (struct store_bucket *)object->bucket;
	const char *etag = object->etag ? object->etag : "";
	size_t name_bytes = SHARED_NUMBERS_BYTES + strlen(etag) + strlen(object->key);
	struct shared *s, *made = malloc(sizeof(*made) + name_bytes);

	if (!made)
		return NULL;
	*made = (struct shared){.bucket = bucket, .n = n, .piece = piece, .references = 1};
	/* An ETag has no line feed; a key is at the end. */
	snprintf(made->name, name_bytes, "%" PRIu64 "+%zu %" PRIu64 " %u %d %s\n%s", at, n,
		object->size, bucket->number, piece, etag, object->key);
	struct shared_list *list = list_of(bucket->stores, made->name);

	LIST_FOREACH(s, list, same)
	if (strcmp(s->name, made->name) == 0)
		break;
	if (!s) {
		LIST_INSERT_HEAD(list, made, same);
		return made;
	}
	free(made);
	if (s->references++ == 0)
		TAILQ_REMOVE(&bucket->kept, s, link);
	return s;
}

static void share_end(struct shared *s)
{
	assert(s->references > 0);
	if (--s->references > 0)
		return;
	if (s->body && !s->piece) {
		TAILQ_INSERT_TAIL(&s->bucket->kept, s, link);
		bucket_turns(s->bucket); /* it can be dropped for others now */
		return;
	}
	struct store_bucket *bucket = s->bucket;

	shared_free(s);
	bucket_turns(bucket);
}

/* Waits while another thread fetches it. Afterwards its body is there, or the caller is the one
 * that fetches it. False: @fault. */
static bool wait_for_share(struct reading *r, struct shared *s, struct fault *fault)
{
	r->shared = s;
	r->fault = fault;
	while (s->fetched && r->shared && !reading_cancelled(r))
		reading_wait(r, INT64_MAX);
	bool failed = !r->shared;

	r->shared = NULL;
	if (reading_cancelled(r))
		return cancel(fault);
	s->fetched |= !failed && !s->body;
	return !failed;
}

/* The caller does not fetch it any more: others may, unless it failed with @fault. */
static void leave_share(struct shared *s, const struct fault *fault)
{
	struct reading *r;

	s->fetched = false;
	if (s->references > 1) /* others wait for it */
		TAILQ_FOREACH(r, &s->bucket->stores->readings, link)
		{
			if (r->shared != s)
				continue;
			if (fault) {
				*r->fault = *fault;
				r->shared = NULL;
			}
			pthread_cond_signal(&r->wake);
		}
}

/* Fetches its body, which begins at @from. False: @fault. */
static bool fetch_share(struct reading *r, struct shared *s, const struct object *object,
	uint64_t from, struct fault *fault)
{
	r->query = "";
	r->asked = (struct verdict_asked){VERDICT_RANGE, object->etag, object->size, from, s->n};
	bool fetched = fetch(r, fault);

	if (fetched) {
		s->body = r->get.body;
		r->get.body = NULL;
		get_release(r);
	}
	leave_share(s, fetched || fault->error == ECANCELED ? NULL : fault);
	return fetched;
}

/* ---- reading ---- */

/* Reads from the cache, while the lock is not held. */
static bool read_cached(
	struct reading *r, const struct object *object, uint64_t at, void *to, size_t n)
{
	pthread_mutex_unlock(&r->stores->lock);
	bool done = store_cache_read(r->stores->cache, object, at, to, n);

	pthread_mutex_lock(&r->stores->lock);
	return done;
}

/* Reads bytes by a GET of @whole bytes at @from, which contain them. @piece: these are a piece, and
 * the cache gets it. */
static bool read_range(struct reading *r, const struct object *object, uint64_t from, size_t whole,
	bool piece, uint64_t at, void *to, size_t n, struct fault *fault)
{
	struct stores *stores = r->stores;
	struct shared *s = share(object, from, whole, piece);
	bool done = s ? wait_for_share(r, s, fault) : no_memory(fault), mine = done && !s->body;

	/* Another thread may have fetched it since this one looked. */
	if (mine && piece && read_cached(r, object, at, to, n)) {
		leave_share(s, NULL);
		share_end(s);
		return true;
	}
	if (mine)
		done = fetch_share(r, s, object, from, fault);
	if (done) {
		pthread_mutex_unlock(&stores->lock);
		memcpy(to, s->body + (at - from), n);
		if (mine && piece)
			store_cache_put(stores->cache, object, from / object->piece, s->body);
		pthread_mutex_lock(&stores->lock);
	}
	if (s)
		share_end(s);
	return done;
}

/* Reads the first bytes of a range. Returns how many; 0: @fault. */
static size_t read_some(struct reading *r, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	struct store_cache *cache = object->piece > 0 ? r->stores->cache : NULL;
	uint64_t each = cache ? object->piece : object->block;
	uint64_t from = each ? at / each * each : at, end = from + (each ? each : READ_BYTES);

	if (end > object->size)
		end = object->size;
	if (n > end - at)
		n = (size_t)(end - at);
	if (cache && read_cached(r, object, at, to, n))
		return n;
	if (!each || (cache && !store_cache_takes(cache)))
		return read_range(r, object, at, n, false, at, to, n, fault) ? n : 0;
	return read_range(r, object, from, end - from, cache, at, to, n, fault) ? n : 0;
}

bool store_read(struct stores *stores, const struct object *object, uint64_t at, void *to, size_t n,
	struct fault *fault)
{
	char *into = to;
	size_t some = 1;

	assert(at + n >= at && at + n <= object->size);
	while (n > 0 && some > 0) {
		struct reading r;

		pthread_mutex_lock(&stores->lock);
		reading_begin(&r, stores, object->bucket, object->key);
		some = read_some(&r, object, at, into, n, fault);
		r.bucket->status.used_bytes += some;
		reading_end(&r);
		pthread_mutex_unlock(&stores->lock);
		into += some;
		at += some;
		n -= some;
	}
	return n == 0;
}

/* ---- requests of their own ---- */

char *store_ask(struct stores *stores, const struct store_bucket *bucket, const char *key,
	const char *query, struct verdict_asked asked, size_t *n, struct answer *answer,
	struct fault *fault)
{
	struct reading r;
	char *body = NULL;

	pthread_mutex_lock(&stores->lock);
	reading_begin(&r, stores, bucket, key);
	r.query = query;
	r.asked = asked;
	if (asked.want == VERDICT_HEAD && stores->options.patience_ms == 0)
		r.until_ms = r.since_ms + HEAD_MS;
	if (fetch(&r, fault)) {
		body = r.get.body;
		r.get.body = NULL;
		*n = r.get.n;
		*answer = r.get.answer;
		get_release(&r);
	}
	reading_end(&r);
	pthread_mutex_unlock(&stores->lock);
	return body;
}

bool store_head(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t *size, char etag[STORE_ETAG_BYTES], struct fault *fault)
{
	struct answer answer;
	size_t n;
	char *body = store_ask(stores, bucket, key, "",
		(struct verdict_asked){.want = VERDICT_HEAD}, &n, &answer, fault);

	if (!body)
		return false;
	free(body);
	*size = answer.length;
	memcpy(etag, answer.etag, STORE_ETAG_BYTES);
	return answer.has_length || fault_errno(fault, EREMOTEIO, "",
					    "%s/%s: the server does not say how many bytes it has",
					    bucket->place.name, key);
}

char *store_load(struct stores *stores, const struct store_bucket *bucket, const char *key,
	size_t most, size_t *n, struct fault *fault)
{
	struct answer answer;
	char *body = store_ask(stores, bucket, key, "",
		(struct verdict_asked){.want = VERDICT_WHOLE, .n = most}, n, &answer, fault);
	char *text = body ? realloc(body, *n + 1) : NULL;

	if (text)
		text[*n] = 0;
	else if (body)
		fault_memory(fault), free(body);
	return text;
}
