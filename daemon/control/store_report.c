#include "daemon/control/store_report.h"

#include "proto/fault.h"

#include <stdio.h>
#include <string.h>

enum { WINDOW_MS = 10000 }; /* rates are over one to two of these */

static struct store_sample sample_of(const struct store_status *s, uint64_t now_ms)
{
	struct store_sample sample = {
		.ms = now_ms, .requests = s->requests, .bytes = s->bytes, .retries = s->retries};

	memcpy(sample.first_byte, s->first_byte, sizeof(sample.first_byte));
	return sample;
}

void store_report_clock(struct store_reports *r, uint64_t now_ms)
{
	struct store_status status;

	for (unsigned i = 0; i < STORE_REPORT_MOST && r->stores; i++) {
		if (!store_status(r->stores, i, &status))
			return;
		if (r->of[i].newer.ms == 0) /* its counters began with 0 in the last second */
			r->of[i].older.ms = r->of[i].newer.ms = now_ms > 1000 ? now_ms - 1000 : 1;
		if (now_ms - r->of[i].newer.ms < WINDOW_MS)
			continue;
		r->of[i].older = r->of[i].newer;
		r->of[i].newer = sample_of(&status, now_ms);
	}
}

/* Within how many milliseconds @part of the answers since @from began; -1: there are none. */
static double quantile(const struct store_sample *from, const struct store_sample *now, double part)
{
	double all = 0, before = 0, most = 1, least = 0;

	for (unsigned i = 0; i < STORE_TIMES; i++)
		all += (double)(now->first_byte[i] - from->first_byte[i]);
	if (all == 0)
		return -1;
	for (unsigned i = 0; i < STORE_TIMES; i++, least = most, most *= 2) {
		double n = (double)(now->first_byte[i] - from->first_byte[i]);

		if (n > 0 && before + n >= part * all)
			return least + (most - least) * (part * all - before) / n;
		before += n;
	}
	return least;
}

static void set(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* A store chooses some of its words. */
static void set_text(json_t *object, const char *name, const char *text)
{
	char cleaned[300];

	snprintf(cleaned, sizeof(cleaned), "%s", text);
	json_object_set_new(object, name, json_string(fault_line(cleaned)));
}

static void set_last(json_t *object, const char *last, int64_t ago_s)
{
	set_text(object, "last", last);
	json_object_set_new(object, "last_ago_s", last[0] ? json_integer(ago_s) : json_null());
}

static json_t *put_faults(const struct store_status *s)
{
	json_t *faults = json_object();
	char code[16];

	for (unsigned i = 0; i < sizeof(s->faults) / sizeof(s->faults[0]); i++) {
		if (s->faults[i] == 0)
			continue;
		snprintf(code, sizeof(code), "%u", i);
		set(faults, i ? code : "none", s->faults[i]);
	}
	return faults;
}

static void put_rates(
	json_t *object, const struct store_sample *from, const struct store_sample *now)
{
	double seconds = (double)(now->ms - from->ms) / 1000,
	       requests = (double)(now->requests - from->requests), p50 = quantile(from, now, 0.5);

	if (from->ms == 0 || seconds <= 0)
		seconds = 1e300;
	json_object_set_new(object, "get_per_s", json_real(requests / seconds));
	json_object_set_new(
		object, "bytes_per_s", json_real((double)(now->bytes - from->bytes) / seconds));
	json_object_set_new(object, "retried",
		json_real(requests > 0 ? (double)(now->retries - from->retries) / requests : 0));
	json_object_set_new(object, "p50_ms", p50 < 0 ? json_null() : json_real(p50));
	json_object_set_new(
		object, "p99_ms", p50 < 0 ? json_null() : json_real(quantile(from, now, 0.99)));
}

static json_t *put_store(
	const struct store_status *s, const struct store_sample *from, uint64_t now_ms)
{
	struct store_sample now = sample_of(s, now_ms);
	json_t *object = json_object();

	set_text(object, "store", s->name);
	put_rates(object, from, &now);
	set(object, "in_flight", s->in_flight);
	set(object, "limit", s->limit);
	set(object, "waiting", s->waiting);
	set(object, "requests", s->requests);
	set(object, "bytes", s->bytes);
	set(object, "used_bytes", s->used_bytes);
	set(object, "retries", s->retries);
	json_object_set_new(object, "faults", put_faults(s));
	set_text(object, "provider", s->provider);
	json_object_set_new(object, "credentials_s",
		s->expires_s == INT64_MAX ? json_null() : json_integer(s->expires_s));
	set_last(object, s->last, s->last_ago_s);
	return object;
}

json_t *store_report(const struct store_reports *r, uint64_t now_ms)
{
	struct store_status status;
	json_t *list = json_array();

	for (unsigned i = 0; i < STORE_REPORT_MOST && r->stores; i++) {
		if (!store_status(r->stores, i, &status))
			break;
		json_array_append_new(list, put_store(&status, &r->of[i].older, now_ms));
	}
	return list;
}

json_t *store_report_cache(const struct store_reports *r)
{
	struct store_cache_status status;
	json_t *object;

	if (!r->stores || !store_cache_status(r->stores, &status))
		return json_null();
	object = json_object();
	set_text(object, "dir", status.dir);
	set(object, "size_bytes", status.size_bytes);
	set(object, "used_bytes", status.used_bytes);
	set(object, "objects", status.objects);
	set(object, "hits", status.hits);
	set(object, "misses", status.misses);
	set(object, "evictions", status.evictions);
	set(object, "mismatches", status.mismatches);
	set(object, "pinned", status.pinned);
	set(object, "failing_s", status.failing_s);
	set_last(object, status.last, status.last_ago_s);
	return object;
}

unsigned store_report_wait(
	const struct store_reports *r, uint32_t id, char *text, size_t text_bytes)
{
	char wait[LIMIT_TEXT_BYTES] = "";
	unsigned seconds = r->stores ? store_waits(r->stores, id, wait, sizeof(wait)) : 0;

	snprintf(text, text_bytes, "%s", wait);
	fault_line(text);
	return seconds;
}

char *store_report_text(const struct store_reports *r, uint64_t now_ms)
{
	struct store_status any;

	if (!r->stores || !store_status(r->stores, 0, &any))
		return NULL;
	json_t *all = json_pack(
		"{s:o, s:o}", "stores", store_report(r, now_ms), "cache", store_report_cache(r));
	char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));

	json_decref(all);
	return text;
}
