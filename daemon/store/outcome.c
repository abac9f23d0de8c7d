/* The consequences of one GET for its range, its wants and its bucket. */
#include "daemon/store/stores.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_MS = 60 * 1000, RECOVERED_MS = 10 * 1000, RECOVERED_WITHIN_MS = 1000 };

/* xorshift */
static uint32_t draw(struct stores *stores)
{
	uint32_t x = stores->random;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return stores->random = x;
}

/* ---- counters ---- */

static void count_first_byte(struct store_status *status, unsigned ms)
{
	unsigned i = 0;

	while (i < STORE_TIMES - 1 && ms > (1u << i))
		i++;
	status->first_byte[i]++;
	status->first_byte_seconds += ms / 1000.0;
}

static void count(struct store_bucket *bucket, const struct outcome *outcome)
{
	struct store_status *status = &bucket->status;

	status->bytes += outcome->bytes;
	if (outcome->status)
		count_first_byte(status, outcome->first_byte_ms);
	if (outcome->verdict.kind == VERDICT_GOOD)
		return;
	status->faults[outcome->timeout ? 0 : outcome->status]++;
	snprintf(status->last, sizeof(status->last), "%.159s", outcome->verdict.reason);
	bucket->fault_ms = stores_now_ms();
}

/* ---- log lines ---- */

static void log_fault(struct store_bucket *bucket, const struct range *range,
	const struct outcome *outcome, int64_t now)
{
	struct stores *stores = bucket->stores;

	if (bucket->fails_since_ms == 0)
		bucket->fails_since_ms = now;
	if (stores->line[0])
		return; /* the next fault is logged */
	if (outcome->fresh_clock) {
		snprintf(stores->line, sizeof(stores->line),
			"%.100s: the clocks differ by %" PRId64 " s; requests are signed with the "
			"store's time; set this machine's clock",
			bucket->place.name, outcome->clock_offset_s);
		return;
	}
	if (bucket->logged_ms != 0 && now - bucket->logged_ms < LOG_MS)
		return;
	bucket->logged_ms = now;
	snprintf(stores->line, sizeof(stores->line), "%.100s/%.150s: %.120s; retrying",
		bucket->place.name, range->key, outcome->verdict.reason);
}

static void log_success(struct store_bucket *bucket, int64_t now)
{
	struct stores *stores = bucket->stores;

	if (bucket->fails_since_ms != 0 && now - bucket->fails_since_ms >= RECOVERED_MS)
		snprintf(stores->line, sizeof(stores->line),
			"%.100s: answers again after %" PRId64 " s", bucket->place.name,
			(now - bucket->fails_since_ms) / 1000);
	bucket->fails_since_ms = 0;
}

/* ---- ends of ranges ---- */

static bool end_wants(struct range *range, const struct fault *fault)
{
	struct stores *stores = range->bucket->stores;
	bool news = false;
	struct want *want;

	while ((want = TAILQ_FIRST(&range->wants)))
		news |= want_end(stores, want, fault);
	return news;
}

/* A fault that is final: "s3://corpus/x.bin: REASON; REMEDY". */
static bool fail(struct range *range, const struct verdict *v, const char *more)
{
	const struct store_bucket *bucket = range->bucket;
	struct fault *fault = malloc(sizeof(*fault));
	const char *remedy = v->remedy;

	if (fault && v->code == FAULT_IO)
		fault_errno(fault, EREMOTEIO, "", "%s/%s: %s%s%s%s", bucket->place.name, range->key,
			v->reason, more, remedy[0] ? "; " : "", remedy);
	else if (fault)
		fault_set(fault, v->code, "", "%s/%s: %s%s%s%s", bucket->place.name, range->key,
			v->reason, more, remedy[0] ? "; " : "", remedy);
	range->fault = fault;
	bool news = end_wants(range, fault ? fault : &want_no_memory);

	range_free_body(range);
	range_end(range);
	return news;
}

/* The store answers again: ranges that wait for it are fetched within a second. */
static void wake_others(struct store_bucket *bucket, int64_t now)
{
	struct stores *stores = bucket->stores;
	struct range *range;

	TAILQ_FOREACH(range, &stores->resting, link)
	{
		int64_t due = now + draw(stores) % RECOVERED_WITHIN_MS;

		if (range->bucket == bucket && range->heals && due < range->due_ms)
			range->due_ms = due;
	}
}

static bool succeed(struct range *range, const struct outcome *outcome)
{
	struct store_bucket *bucket = range->bucket;
	int64_t now = stores_now_ms();

	bucket->successes++;
	if (outcome->begun_ms > bucket->success_begun_ms)
		bucket->success_begun_ms = outcome->begun_ms;
	limit_answered(&bucket->limit, bucket->status.in_flight + 1);
	if (bucket->fails_since_ms != 0 && now - bucket->fails_since_ms >= RECOVERED_WITHIN_MS)
		wake_others(bucket, now);
	log_success(bucket, now);
	bool news = end_wants(range, NULL);

	range_keep(range);
	return news;
}

/* ---- faults ---- */

/* What the words of a final fault lack: the credentials, or the manifest's side. */
static void explain(const struct range *range, const struct outcome *outcome, bool others,
	char *more, size_t more_bytes)
{
	char provider[64];
	int64_t expires_s;

	if (outcome->verdict.kind == VERDICT_DENIED && others) {
		snprintf(more, more_bytes,
			", while other objects are readable: it is missing, or may not be read");
	} else if (outcome->verdict.kind == VERDICT_DENIED) {
		wallet_status(range->bucket->wallet, provider, &expires_s);
		snprintf(more, more_bytes, " (credentials: %s)", provider[0] ? provider : "none");
	} else if (outcome->verdict.kind == VERDICT_OTHER && outcome->status >= 400 &&
		   range->etag) {
		snprintf(more, more_bytes,
			"; the manifest has %" PRIu64 " bytes with the ETag \"%.128s\"",
			range->size, range->etag);
	}
}

static void rest(struct range *range, int64_t due_ms)
{
	range->state = RANGE_RESTS;
	range->due_ms = due_ms;
	TAILQ_INSERT_TAIL(&range->bucket->stores->resting, range, link);
}

/* The time since when @range is waited for. Nobody waits again for a store that is away. */
static int64_t waits_since(const struct range *range, const struct verdict *v)
{
	int64_t away = range->bucket->fails_since_ms;

	return v->kind == VERDICT_HEALS && away != 0 && away < range->since_ms ? away
									       : range->since_ms;
}

static bool retry(struct range *range, const struct outcome *outcome, int64_t now)
{
	struct store_bucket *bucket = range->bucket;
	const struct verdict *v = &outcome->verdict;
	int64_t patience = bucket->stores->options.patience_ms;
	char more[300] = "";
	struct retry_state state = {
		/* Tools can be called again, so that an object is missing is said at once. */
		.listed = range->etag && !range->once && patience == 0,
		.proven = bucket->successes > 0,
		.retry_after_s = outcome->retry_after_s,
		.random = draw(bucket->stores),
	};

	if (v->kind == VERDICT_DENIED && !range->denied) {
		range->denied = true;
		range->denied_ms = now;
	}
	/* GETs that began before prove nothing: the right to read all may have been lost then.
	 * Wrong keys do not concern one object: servers may learn a new key one by one. */
	state.others = range->denied && bucket->success_begun_ms > range->denied_ms &&
		       !outcome->verdict.keys;
	if (outcome->timeout)
		range->tries.timeouts++;
	range->heals = v->kind == VERDICT_HEALS && outcome->retry_after_s == 0;
	range->renews = v->kind == VERDICT_DENIED || v->kind == VERDICT_EXPIRED;
	range->fresh = v->kind == VERDICT_TORN || outcome->timeout || outcome->status == 0;
	if (outcome->status == 412)
		range->no_match = true; /* the next answer names the ETag */

	int64_t wait = retry_after(&range->tries, v, &state),
		end = waits_since(range, v) + patience;

	if (wait == RETRY_STOP) {
		explain(range, outcome, state.others, more, sizeof(more));
		return fail(range, v, more);
	}
	if (patience > 0 && now >= end) {
		snprintf(more, sizeof(more), ", for %" PRId64 " s", patience / 1000);
		return fail(range, v, more);
	}
	if (patience > 0 && now + wait > end)
		wait = end - now;
	log_fault(bucket, range, outcome, now);
	bucket->status.retries++;
	rest(range, now + wait);
	return false;
}

bool outcome_apply(struct range *range, const struct outcome *outcome)
{
	struct store_bucket *bucket = range->bucket;
	int64_t now = stores_now_ms();

	assert(range->state == RANGE_FLIES && bucket->status.in_flight > 0);
	bucket->status.in_flight--;
	count(bucket, outcome);
	if (outcome->verdict.overload)
		limit_overload(&bucket->limit, now);
	if (outcome->verdict.kind == VERDICT_GOOD)
		return succeed(range, outcome);
	range_free_body(range);
	snprintf(range->reason, sizeof(range->reason), "%.95s", outcome->verdict.reason);
	if (!TAILQ_EMPTY(&range->wants))
		return retry(range, outcome, now);
	range_end(range);
	return false;
}
