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
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	READ_BYTES = 8 * 1024 * 1024,
	LOAD_BYTES = 1024 * 1024,
	LOADS = 5,
	LOG_MS = 60 * 1000,
	RECOVERED_MS = 10 * 1000,
	RECOVERED_WITHIN_MS = 1000,
	CLOCK_NEWS_S = 60,
	TICK_MS = 1000,
	LIMIT_LEAST = 4,
	LIMIT_HALVED_MS = 1000,
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
	if (limit->halved && limit->answers < limit->now)
		return;
	limit->now++;
	limit->answers = 0;
}

/* The store asked to slow down, or did not answer in time. */
static void limit_overload(struct limit *limit, int64_t now_ms)
{
	unsigned least = limit->most < LIMIT_LEAST ? limit->most : LIMIT_LEAST,
		 half = limit->now / 2;

	if (limit->halved && now_ms - limit->halved_ms < LIMIT_HALVED_MS)
		return;
	limit->now = half > least ? half : least;
	limit->answers = 0;
	limit->halved = true;
	limit->halved_ms = now_ms;
}

static void count_first_byte(struct store_status *status, unsigned ms)
{
	unsigned i = 0;

	while (i < STORE_TIMES - 1 && ms > (1u << i))
		i++;
	status->first_byte[i]++;
	status->first_byte_seconds += ms / 1000.0;
}

static void count(struct store_bucket *bucket, const struct get *get)
{
	struct store_status *status = &bucket->status;

	status->bytes += get->n;
	if (get->answer.status)
		count_first_byte(status,
			get->answered_ms ? (unsigned)(get->answered_ms - get->begun_ms) : 0);
	if (get->verdict.kind == VERDICT_GOOD)
		return;
	status->faults[get->timed_out ? 0 : get->answer.status]++;
	snprintf(status->last, sizeof(status->last), "%.159s", get->verdict.reason);
	bucket->fault_ms = stores_now_ms();
}

/* Unlocks meanwhile. */
static void say(struct stores *stores, const char *line)
{
	if (!stores->options.log)
		return;
	pthread_mutex_unlock(&stores->lock);
	stores->options.log(stores->options.log_context, line);
	pthread_mutex_lock(&stores->lock);
}

/* The store answers again: those that wait for it ask within a second. */
static void wake_others(struct store_bucket *bucket, int64_t now)
{
	struct stores *stores = bucket->stores;
	struct reading *r;

	TAILQ_FOREACH(r, &stores->readings, link)
	{
		int64_t due = now + stores_random() % RECOVERED_WITHIN_MS;

		if (r->bucket != bucket || !r->heals || r->due_ms <= due)
			continue;
		r->due_ms = due;
		pthread_cond_signal(&r->wake);
	}
}

static void succeeded(struct store_bucket *bucket, const struct get *get)
{
	int64_t now = stores_now_ms(), failed_ms = now - bucket->fails_since_ms;
	bool failed = bucket->fails_since_ms != 0;
	char line[400];

	bucket->successes++;
	if (get->begun_ms > bucket->success_begun_ms)
		bucket->success_begun_ms = get->begun_ms;
	limit_answered(&bucket->limit, bucket->status.in_flight);
	bucket->fails_since_ms = 0;
	if (failed && failed_ms >= RECOVERED_WITHIN_MS)
		wake_others(bucket, now);
	if (failed && failed_ms >= RECOVERED_MS) {
		snprintf(line, sizeof(line), "%.100s: answers again after %" PRId64 " s",
			bucket->place.name, failed_ms / 1000);
		say(bucket->stores, line);
	}
}

/* The server's clock minus ours. Returns whether that is news: GETs that were signed before bring
 * the same. */
static bool read_clock(struct store_bucket *bucket, const struct get *get)
{
	int64_t offset = get->answer.date - (int64_t)time(NULL);

	if (get->verdict.kind != VERDICT_CLOCK || !get->answer.date)
		return false;
	bool news = llabs(offset - bucket->clock_offset_s) > CLOCK_NEWS_S;

	bucket->clock_offset_s = offset;
	wallet_clock(bucket->wallet, offset);
	return news;
}

/* @key NULL: nothing is logged, because the fault is final. */
static void failed(struct store_bucket *bucket, const char *key, const struct get *get)
{
	int64_t now = stores_now_ms();
	bool clock = read_clock(bucket, get);
	char line[400];

	if (get->verdict.overload)
		limit_overload(&bucket->limit, now);
	if (get->serial &&
		(get->verdict.kind == VERDICT_EXPIRED || get->verdict.kind == VERDICT_DENIED))
		wallet_refused(bucket->wallet, get->serial);
	if (clock) {
		snprintf(line, sizeof(line),
			"%.100s: the clocks differ by %" PRId64
			" s; requests are signed with the store's time; set this machine's clock",
			bucket->place.name, bucket->clock_offset_s);
		say(bucket->stores, line);
	} else if (key && (bucket->logged_ms == 0 || now - bucket->logged_ms >= LOG_MS)) {
		bucket->logged_ms = now;
		snprintf(line, sizeof(line), "%.100s/%.150s: %.120s; retrying", bucket->place.name,
			key, get->verdict.reason);
		say(bucket->stores, line);
	}
}

/* ---- one object's GETs; with the lock ---- */

/* Waits for credentials. False: @fault. */
static bool wait_for_credentials(struct reading *r, struct fault *fault)
{
	struct store_bucket *bucket = r->bucket;
	struct stores *stores = r->stores;

	for (;;) {
		struct fault cause = {.text = "credentials"};
		enum wallet_state state = wallet_get(bucket->wallet, bucket->credentials, &cause);
		int64_t now = stores_now_ms(), patience = stores->options.patience_ms;

		bucket->waits_for[0] = 0;
		if (reading_cancelled(r))
			return cancel(fault);
		if (state == WALLET_READY)
			return true;
		if (state == WALLET_NONE) {
			*fault = cause;
			return false;
		}
		snprintf(bucket->waits_for, sizeof(bucket->waits_for), "%.159s", cause.text);
		if (patience > 0 && now - r->since_ms > patience)
			return fault_errno(fault, EREMOTEIO, "", "%s: waited %d s for %s",
				bucket->place.name, (int)(patience / 1000), bucket->waits_for);
		reading_wait(r, now + TICK_MS);
	}
}

/* Waits until a GET may begin, of which @bytes are kept in memory. False: cancelled. */
static bool wait_for_turn(struct reading *r, uint64_t bytes)
{
	r->bytes = bytes;
	r->queued = true;
	r->bucket->queued++;
	bucket_turns(r->bucket);
	while (r->queued && !reading_cancelled(r))
		reading_wait(r, INT64_MAX);
	if (!r->queued)
		return true;
	r->bucket->queued--;
	r->queued = false;
	return false;
}

/* Makes one GET. NULL: @fault: cancelled. */
static struct get *try(struct reading *r, struct fault *fault)
{
	struct get *get;

	if (!wait_for_credentials(r, fault))
		return NULL;
	if (!wait_for_turn(r, r->ask.asked.n)) {
		cancel(fault);
		return NULL;
	}
	r->ask.first_byte_ms = retry_first_byte_ms(&r->tries);
	get = get_make(r);
	if (!get) {
		r->bucket->status.in_flight--;
		r->bucket->body_bytes -= r->bytes;
		bucket_turns(r->bucket);
		no_memory(fault);
		return NULL;
	}
	if (!get->left || get->verdict.kind == VERDICT_GOOD)
		return get;
	get_release(get);
	cancel(fault);
	return NULL;
}

/* A fault that is final: "s3://corpus/x.bin: REASON; REMEDY". Always false. */
static bool fail(
	const struct reading *r, const struct verdict *v, const char *more, struct fault *fault)
{
	const char *name = r->bucket->place.name, *semicolon = v->remedy[0] ? "; " : "";

	if (v->code == FAULT_IO)
		return fault_errno(fault, EREMOTEIO, "", "%s/%s: %s%s%s%s", name, r->key, v->reason,
			more, semicolon, v->remedy);
	return fault_set(fault, v->code, "", "%s/%s: %s%s%s%s", name, r->key, v->reason, more,
		semicolon, v->remedy);
}

/* What the words of a final fault lack: the credentials, or the manifest's side. */
static void explain(
	const struct reading *r, const struct get *get, bool others, char *more, size_t more_bytes)
{
	char provider[64];
	int64_t expires_s;

	if (get->verdict.kind == VERDICT_DENIED && others) {
		snprintf(more, more_bytes,
			", while other objects are readable: it is missing, or may not be read");
	} else if (get->verdict.kind == VERDICT_DENIED) {
		wallet_status(r->bucket->wallet, provider, &expires_s);
		snprintf(more, more_bytes, " (credentials: %s)", provider[0] ? provider : "none");
	} else if (get->verdict.kind == VERDICT_OTHER && get->answer.status >= 400 &&
		   r->ask.asked.etag) {
		snprintf(more, more_bytes,
			"; the manifest has %" PRIu64 " bytes with the ETag \"%.128s\"",
			r->ask.asked.size, r->ask.asked.etag);
	}
}

/* The time since when it is waited for. Nobody waits again for a store that is away. */
static int64_t waits_since(const struct reading *r, const struct verdict *v)
{
	int64_t away = r->bucket->fails_since_ms;

	return v->kind == VERDICT_HEALS && away != 0 && away < r->since_ms ? away : r->since_ms;
}

/* Judges a GET that failed. Returns when to try again; negative: @fault, it is final. */
static int64_t judge(struct reading *r, const struct get *get, struct fault *fault)
{
	struct store_bucket *bucket = r->bucket;
	const struct verdict *v = &get->verdict;
	int64_t patience = bucket->stores->options.patience_ms, now = stores_now_ms();
	char more[300] = "";
	struct retry_state state = {
		/* Tools can be called again, so that an object is missing is said at once. */
		.listed = r->ask.asked.etag && !r->once && patience == 0,
		.proven = bucket->successes > 0,
		.retry_after_s = get->answer.retry_after_s,
		.random = stores_random(),
	};

	if (v->kind == VERDICT_DENIED && r->denied_ms == 0)
		r->denied_ms = now;
	/* GETs that began before prove nothing: the right to read all may have been lost then.
	 * Wrong keys do not concern one object: servers may learn a new key one by one. */
	state.others = r->denied_ms && bucket->success_begun_ms > r->denied_ms && !v->keys;
	if (get->timed_out)
		r->tries.timeouts++;
	r->heals = v->kind == VERDICT_HEALS && get->answer.retry_after_s == 0;
	r->renews = v->kind == VERDICT_DENIED || v->kind == VERDICT_EXPIRED;
	r->ask.fresh = v->kind == VERDICT_TORN || get->timed_out || get->answer.status == 0;
	if (get->answer.status == 412)
		r->ask.no_match = true; /* the next answer names the ETag */
	snprintf(r->reason, sizeof(r->reason), "%.95s", v->reason);

	int64_t wait = retry_after(&r->tries, v, &state), end = waits_since(r, v) + patience;

	if (wait == RETRY_STOP) {
		explain(r, get, state.others, more, sizeof(more));
		fail(r, v, more, fault);
		return -1;
	}
	if (patience > 0 && now >= end) {
		snprintf(more, sizeof(more), ", for %" PRId64 " s", patience / 1000);
		fail(r, v, more, fault);
		return -1;
	}
	return patience > 0 && now + wait > end ? end : now + wait;
}

/* Makes GETs until one succeeds, which the caller releases. NULL: @fault. */
static struct get *fetch(struct reading *r, struct fault *fault)
{
	struct store_bucket *bucket = r->bucket;
	struct get *get;

	while ((get = try(r, fault))) {
		count(bucket, get);
		if (get->verdict.kind == VERDICT_GOOD) {
			succeeded(bucket, get);
			return get;
		}
		r->due_ms = judge(r, get, fault);
		bool again = r->due_ms >= 0;

		bucket->status.retries += again;
		if (again && bucket->fails_since_ms == 0)
			bucket->fails_since_ms = stores_now_ms();
		failed(bucket, again ? r->key : NULL, get);
		get_release(get);
		if (!again)
			return NULL;
		while (stores_now_ms() < r->due_ms && !reading_cancelled(r))
			reading_wait(r, r->due_ms);
		r->heals = r->renews = false;
	}
	return NULL;
}

/* ---- shared bytes; with the lock ---- */

/* Of the tree of all that can be found. */
static int compare(const void *a, const void *b)
{
	const struct shared *x = a, *y = b;
	int order = memcmp(x->range, y->range, sizeof(x->range));

	if (order == 0)
		order = strcmp(x->key, y->key);
	return order ? order : strcmp(x->etag, y->etag);
}

static void shared_free(struct shared *s)
{
	assert(s->references == 0 && !s->fetched);
	if (!s->failed)
		tdelete(s, &s->bucket->stores->shared, compare);
	if (s->body)
		s->bucket->body_bytes -= s->n;
	free(s->body);
	free(s->fault);
	free(s);
}

/* Frees what is kept for the longest time. False: nothing is kept. */
static bool drop_oldest(struct store_bucket *bucket)
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

	while (bucket->body_bytes + bytes > most && drop_oldest(bucket))
		continue;
	return bucket->body_bytes + bytes <= most;
}

void shared_drop(struct store_bucket *bucket)
{
	while (drop_oldest(bucket))
		continue;
}

/* Finds or makes it, with a reference. NULL: out of memory. */
static struct shared *share(const struct object *object, uint64_t at, size_t n, bool piece)
{
	struct stores *stores = object->bucket->stores;
	const char *etag = object->etag ? object->etag : "";
	const struct shared wanted = {
		.range = {object->bucket->number, object->size, at, n, piece},
		.bucket = (struct store_bucket *)object->bucket,
		.key = object->key,
		.etag = etag,
		.n = n,
		.piece = piece,
		.references = 1,
	};
	struct shared **found = tfind(&wanted, &stores->shared, compare), *s;

	if (found) {
		s = *found;
		if (s->references++ == 0)
			TAILQ_REMOVE(&s->bucket->kept, s, link);
		return s;
	}
	size_t key = strlen(object->key) + 1;

	s = malloc(sizeof(*s) + key + strlen(etag) + 1);
	if (!s)
		return NULL;
	*s = wanted;
	s->key = memcpy(s + 1, object->key, key);
	s->etag = strcpy((char *)(s + 1) + key, etag);
	if (tsearch(s, &stores->shared, compare))
		return s;
	free(s);
	return NULL;
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

static void wake_sharers(const struct shared *s)
{
	struct reading *r;

	if (s->references == 1) /* the caller's */
		return;
	TAILQ_FOREACH(r, &s->bucket->stores->readings, link)
	if (r->shared == s)
		pthread_cond_signal(&r->wake);
}

/* Waits while another thread fetches it. Afterwards its body is there, or the caller is the one
 * that fetches it. False: @fault. */
static bool wait_for_share(struct reading *r, struct shared *s, struct fault *fault)
{
	r->shared = s;
	while (s->fetched && !reading_cancelled(r))
		reading_wait(r, INT64_MAX);
	r->shared = NULL;
	if (reading_cancelled(r))
		return cancel(fault);
	if (s->failed)
		return s->fault ? (*fault = *s->fault, false) : no_memory(fault);
	s->fetched = !s->body;
	return true;
}

/* The caller leaves it to others to fetch it. */
static void leave_share(struct shared *s)
{
	s->fetched = false;
	wake_sharers(s);
}

/* Fetches its body. False: @fault. */
static bool fetch_share(struct reading *r, struct shared *s, struct fault *fault)
{
	r->ask = (struct ask){.query = "",
		.asked = {VERDICT_RANGE, s->etag[0] ? s->etag : NULL, s->range[1],
			.at = s->range[2], .n = s->n}};
	struct get *get = fetch(r, fault);

	if (get) {
		s->body = get->body;
		get->body = NULL;
		get_release(get);
	} else if (fault->error != ECANCELED) {
		tdelete(s, &s->bucket->stores->shared, compare);
		s->failed = true;
		s->fault = malloc(sizeof(*fault));
		if (s->fault)
			*s->fault = *fault;
	}
	leave_share(s);
	return get;
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
		leave_share(s);
		share_end(s);
		return true;
	}
	if (mine)
		done = fetch_share(r, s, fault);
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

/* Reads bytes of one piece. */
static bool read_piece(struct reading *r, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	struct store_cache *cache = r->stores->cache;

	if (read_cached(r, object, at, to, n))
		return true;
	if (!store_cache_takes(cache))
		return read_range(r, object, at, n, false, at, to, n, fault);
	uint64_t number = at / object->piece;

	return read_range(r, object, number * object->piece,
		cache_piece_bytes(object->size, object->piece, number), true, at, to, n, fault);
}

/* Reads the first bytes of a range. Returns how many; 0: @fault. */
static size_t read_some(struct reading *r, const struct object *object, uint64_t at, void *to,
	size_t n, struct fault *fault)
{
	bool piece = r->stores->cache && object->piece > 0, done;
	uint64_t each = piece ? object->piece : object->block, from = at, end = at + READ_BYTES;

	if (each > 0) {
		from = at / each * each;
		end = from + each;
	}
	if (end > object->size)
		end = object->size;
	if (n > end - at)
		n = (size_t)(end - at);
	if (piece)
		done = read_piece(r, object, at, to, n, fault);
	else
		done = read_range(
			r, object, from, each > 0 ? end - from : n, false, at, to, n, fault);
	return done ? n : 0;
}

bool store_read(struct stores *stores, const struct object *object, uint64_t at, void *to, size_t n,
	struct fault *fault)
{
	char *into = to;
	size_t some = 1;

	assert(at + n >= at && (object->size == STORE_SIZE_UNKNOWN || at + n <= object->size));
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

/* What a good answer says of the object's size. */
static uint64_t size_of(const struct answer *a)
{
	if (a->status == 206)
		return a->size;
	if (a->status == 416)
		return 0;
	return a->has_length ? a->length : STORE_SIZE_UNKNOWN;
}

bool store_ask(struct stores *stores, const struct store_bucket *bucket, const char *key,
	const struct ask *ask, struct asked *answer, struct fault *fault)
{
	struct reading r;
	struct get *get;

	*answer = (struct asked){.size = STORE_SIZE_UNKNOWN};
	pthread_mutex_lock(&stores->lock);
	reading_begin(&r, stores, bucket, key);
	r.ask = *ask;
	r.once = true;
	get = fetch(&r, fault);
	if (get) {
		answer->n = get->answer.status == 416 ? 0 : get->n;
		answer->size = size_of(&get->answer);
		memcpy(answer->etag, get->answer.etag, sizeof(answer->etag));
		if (ask->asked.want != VERDICT_HEAD) {
			answer->body = get->body;
			get->body = NULL;
			r.bucket->body_bytes -= get->body_bytes;
		}
		get_release(get);
	}
	reading_end(&r);
	pthread_mutex_unlock(&stores->lock);
	return get;
}

bool store_head(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t *size, char etag[STORE_ETAG_BYTES], struct fault *fault)
{
	const struct ask ask = {
		.query = "", .asked = {.want = VERDICT_HEAD, .size = STORE_SIZE_UNKNOWN}};
	struct asked answer;

	if (!store_ask(stores, bucket, key, &ask, &answer, fault))
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

/* Its first part also says how long the object is. NULL: @fault. */
static char *load_first(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t most, struct asked *answer, struct fault *fault)
{
	const struct ask ask = {
		.query = "", .asked = {VERDICT_BEGIN, NULL, STORE_SIZE_UNKNOWN, 0, LOAD_BYTES}};
	const char *name = bucket->place.name;
	char *body = NULL;

	if (!store_ask(stores, bucket, key, &ask, answer, fault))
		return NULL;
	if (answer->size == STORE_SIZE_UNKNOWN || answer->size < answer->n)
		fault_errno(fault, EREMOTEIO, "",
			"%s/%s: the server does not say how many bytes it has", name, key);
	else if (answer->size > most)
		fault_set(fault, FAULT_DATA, "",
			"%s/%s: %" PRIu64 " bytes, at most %" PRIu64 " are allowed", name, key,
			answer->size, most);
	else if (!(body = realloc(answer->body, answer->size + 1)))
		fault_memory(fault);
	if (!body)
		free(answer->body);
	else
		body[answer->size] = 0;
	return body;
}

char *store_load(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t most, size_t *n, char etag[STORE_ETAG_BYTES], struct fault *fault)
{
	struct asked first;

	for (int i = 0; i < LOADS; i++) {
		char *body = load_first(stores, bucket, key, most, &first, fault);
		const struct object object = {.bucket = bucket,
			.key = key,
			.etag = first.etag[0] ? first.etag : NULL,
			.size = first.size,
			.block = LOAD_BYTES};

		if (body && store_read(stores, &object, first.n, body + first.n,
				    first.size - first.n, fault)) {
			*n = first.size;
			memcpy(etag, first.etag, STORE_ETAG_BYTES);
			return body;
		}
		free(body);
		if (!body || fault->code != FAULT_CHANGED)
			return NULL;
	}
	fault_set(fault, FAULT_CHANGED, "", "%s/%s " PHRASE_CHANGED, bucket->place.name, key);
	return NULL;
}
