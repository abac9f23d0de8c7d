/*
 * The document is a list of items, {"session": {…}} and the like, in an order that depends on the
 * config only. A page is as many of them as fit in a packet; the next page goes on with the next
 * item. Nothing outlives the reply.
 */
#include "daemon/control/status.h"

#include "daemon/control/control.h"
#include "proto/text.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

enum {
	RUNS = 32,	   /* with their mixes */
	MIXED = 32,	   /* datasets of one mix */
	WINDOW_MS = 10000, /* rates of stores are over one to two of these */
};

struct page {
	uint64_t at;	/* number of the item that comes next in the document */
	uint64_t after; /* that of the first item of this page; later: of the next page, 0: none */
	bool full;
	bool public; /* for anyone who reaches a port: without directories, pids and hosts */
	size_t n;
	char text[LIMIT_PACKET_BYTES - 2 * LIMIT_TEXT_BYTES];
};

/* Does the next item of the document belong to the page? */
static bool wants(struct page *p)
{
	return p->at++ >= p->after && !p->full;
}

/* Puts the item that wants() was asked about, which is freed. NULL: out of memory; it is left out.
 */
static void put(struct page *p, const char *name, json_t *value)
{
	json_t *item = json_pack("{s:o}", name, value);
	size_t room = sizeof(p->text) - p->n - 2, n = 0; /* without the brackets */

	if (item)
		n = json_dumpb(
			item, p->text + p->n + 1, room, JSON_COMPACT | JSON_REAL_PRECISION(15));
	json_decref(item);
	p->full = n > room && p->n > 0;
	if (p->full)
		p->after = p->at - 1;
	if (n == 0 || n > room)
		return;
	p->text[p->n] = p->n == 0 ? '[' : ',';
	p->n += n + 1;
}

/* Numbers above 2^63 become negative: the reader casts them back. */
static void set(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* Bytes that are not UTF-8, or control a terminal, become '?'. Of paths in a public text, only the
 * last part is left. */
static json_t *text_of(const char *text, bool public)
{
	char clean[LIMIT_TEXT_BYTES];
	size_t n = 0;

	for (unsigned bytes; *text && n + 8 < sizeof(clean); text += bytes ? bytes : 1) {
		bytes = text_character(text);
		if (public && *text == '/') {
			while (text[1] && text[1] != ' ' && n > 0 && clean[n - 1] != ' ')
				n--;
		} else if (bytes == 0) {
			clean[n++] = '?';
		} else {
			memcpy(clean + n, text, bytes);
			n += bytes;
		}
	}
	return json_stringn(clean, n);
}

static void set_text(json_t *object, const char *name, const char *text, bool public)
{
	json_object_set_new(object, name, text_of(text, public));
}

static void set_digest(json_t *object, uint64_t digest)
{
	char text[20];

	snprintf(text, sizeof(text), "%016" PRIx64, digest);
	json_object_set_new(object, "digest", json_string(text));
}

static void set_slow(json_t *object, const struct reader_hang *hang, bool public)
{
	char path[LIMIT_TEXT_BYTES];

	if (hang->ticks == 0)
		return;
	hang_shard(hang, path, sizeof(path));
	set(object, "slow_ms", hang->ticks * UINT64_C(1000));
	set_text(object, "slow_shard", path, public);
}

/* {"le": {"0.001": n, …, "+Inf": n}, "sum": seconds}, with the sums of @n + 1 buckets so far. */
static json_t *histogram(const uint64_t *bucket, const uint64_t *most_ns, unsigned n, double sum)
{
	json_t *le = json_object();
	char limit[32];
	uint64_t so_far = 0;

	for (unsigned i = 0; i < n; i++) {
		snprintf(limit, sizeof(limit), "%.9g", (double)most_ns[i] / 1e9);
		set(le, limit, so_far += bucket[i]);
	}
	set(le, "+Inf", so_far + bucket[n]);
	return json_pack("{s:o, s:f}", "le", le, "sum", sum);
}

/* ---- sessions and streams ---- */

static unsigned store_wait(const struct session *s, char text[LIMIT_TEXT_BYTES])
{
	struct stores *stores = s->control->stores.stores;

	text[0] = 0;
	return stores ? store_waits(stores, s->id, text, LIMIT_TEXT_BYTES) : 0;
}

/* The position of the next batch. The last one of a stream that ends may have padding. */
static uint64_t position_of(const struct session *s)
{
	uint64_t end = cursor_end(feed_cursor(s->feed)), next = s->next,
		 step = s->world * s->micro_batch, released = feed_counters(s->feed).released;

	return next >= end || released > (end - next) / step ? end : next + released * step;
}

static json_t *session_item(const struct session *s, bool public)
{
	struct feed_counters counters = feed_counters(s->feed);
	struct data_thread_waits waits = data_thread_waits(s->control->data_thread, s->id);
	char text[LIMIT_TEXT_BYTES];
	unsigned wait_s = store_wait(s, text);
	uint64_t now = uv_now(s->control->loop);
	json_t *item = json_object();

	set(item, "session", s->id);
	set_text(item, "stream", s->stream->config->name, false);
	set_text(item, "run", s->run, false);
	set(item, "rank", s->rank);
	set(item, "world", s->world);
	set(item, "micro", s->micro_batch);
	set(item, "peer", s->peer);
	set(item, "seq_len", s->stream->config->seq_len);
	set(item, "position", position_of(s));
	set(item, "slots", s->slots);
	set(item, "published", counters.published);
	set(item, "released", counters.released);
	set(item, "ready", counters.published - counters.released);
	set(item, "full_ms", s->full_since_ms ? now - s->full_since_ms : 0);
	set(item, "lost_wakes", counters.lost_wakes);
	set(item, "waits", waits.times);
	set(item, "waited_ms", waits.ns / 1000000);
	set(item, "memory_bytes", s->bytes);
	set(item, "request", request_number(s));
	set_slow(item, hang_of(&s->control->hangs, s->stream), public);
	if (wait_s > 0) {
		set(item, "store_wait_ms", wait_s * UINT64_C(1000));
		set_text(item, "store_wait", text, false);
	}
	if (s->memory.node != RING_MEMORY_ANYWHERE)
		set(item, "node", s->memory.node);
	if (public)
		return item;
	set(item, "pid", (uint64_t)s->connection->pid);
	set_text(item, "host", s->connection->host, false);
	return item;
}

static void add_session(struct stream_gauges *g, const struct session *s)
{
	struct feed_counters c = feed_counters(s->feed);
	uint64_t ready = c.published - c.released,
		 full_ms = s->full_since_ms ? uv_now(s->control->loop) - s->full_since_ms : 0;
	char text[LIMIT_TEXT_BYTES];
	unsigned wait_s = store_wait(s, text);

	g->least_ready = g->sessions == 0 || ready < g->least_ready ? ready : g->least_ready;
	g->sessions++;
	g->waiting += c.waits;
	g->slots += s->slots;
	g->ready += ready;
	g->published += c.published;
	g->released += c.released;
	g->full_ms = full_ms > g->full_ms ? full_ms : g->full_ms;
	g->store_wait_s = wait_s > g->store_wait_s ? wait_s : g->store_wait_s;
}

struct stream_gauges status_gauges(struct control *control)
{
	struct stream_gauges all = {0};

	for (uint32_t i = 0; i < control->config->streams; i++)
		control->counts.streams[i].now = (struct stream_gauges){0};
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		if (!session_is_live(s))
			continue;
		add_session(&s->stream->counts->now, s);
		add_session(&all, s);
	}
	return all;
}

static json_t *times(const struct histogram *h)
{
	uint64_t bucket[COUNTS_BUCKETS + 1];

	for (unsigned i = 0; i <= COUNTS_BUCKETS; i++)
		bucket[i] = count_of(&h->bucket[i]);
	return histogram(
		bucket, histogram_most_ns, COUNTS_BUCKETS, (double)count_of(&h->sum_ns) / 1e9);
}

static json_t *read_errors(const struct stream_counts *c)
{
	static const struct {
		enum fault_code code;
		const char *kind;
	} kinds[] = {{FAULT_IO, "io"}, {FAULT_DATA, "data"}, {FAULT_CHANGED, "changed"},
		{FAULT_TOKEN, "token"}, {FAULT_MEMORY, "memory"},
		{FAULT_DESCRIPTORS, "descriptors"}};
	json_t *errors = json_object();

	for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		set(errors, kinds[k].kind, count_of(&c->read_faults[kinds[k].code]));
	return errors;
}

static json_t *stream_item(const struct control *control, const struct stream *stream, bool public)
{
	const struct stream_counts *c = stream->counts;
	json_t *item = json_object(), *times_of = json_object();

	set_text(item, "stream", stream->config->name, false);
	set(item, "seq_len", stream->config->seq_len);
	set(item, "sessions", c->now.sessions);
	set(item, "waiting", c->now.waiting);
	set(item, "slots", c->now.slots);
	set(item, "ready", c->now.ready);
	if (c->now.sessions > 0)
		set(item, "least_ready", c->now.least_ready);
	set(item, "full_ms", c->now.full_ms);
	set(item, "slow_ms", 0);
	set_slow(item, hang_of(&control->hangs, stream), public);
	set(item, "store_wait_ms", c->now.store_wait_s * 1000);
	set(item, "published", c->published + c->now.published);
	set(item, "released", c->released + c->now.released);
	set(item, "read_bytes", count_of(&c->read_bytes));
	json_object_set_new(item, "attaches",
		json_pack("{s:I, s:I}", "first", (json_int_t)(c->attaches - c->attaches_again),
			"again", (json_int_t)c->attaches_again));
	json_object_set_new(item, "waits", times(&c->waits));
	json_object_set_new(item, "reads", times(&c->reads));
	json_object_set_new(item, "read_errors", read_errors(c));
	json_object_set_new(item, "snapshots",
		json_pack("{s:I, s:I}", "made", (json_int_t)c->snapshots, "failed",
			(json_int_t)c->snapshots_failed));
	if (c->snapshot_s > 0)
		set(times_of, "made", (uint64_t)c->snapshot_s);
	if (c->snapshot_failed_s > 0)
		set(times_of, "failed", (uint64_t)c->snapshot_failed_s);
	json_object_set_new(item, "snapshot_times", times_of);
	return item;
}

static json_t *dataset_item(const struct stream *stream, uint32_t d)
{
	json_t *item = json_object();

	set_text(item, "stream", stream->config->name, false);
	set_text(item, "dataset", stream->config->dataset[d].name, false);
	set_digest(item, stream->dataset[d].digest);
	set(item, "samples", count_of(stream->dataset[d].samples));
	return item;
}

static void put_streams(struct page *p, const struct control *control)
{
	const struct catalog *catalog = control->catalog;

	for (uint32_t i = 0; i < catalog->config->streams; i++)
		if (wants(p))
			put(p, "streams", stream_item(control, &catalog->stream[i], p->public));
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++)
			if (wants(p))
				put(p, "datasets", dataset_item(&catalog->stream[i], d));
}

/* The mix at the session's position, and the next one. */
static json_t *mixes_of(const struct session *s)
{
	const struct cursor *cursor = feed_cursor(s->feed);
	uint64_t position = position_of(s);
	uint32_t at = 0;
	json_t *list = json_array();

	while (at + 1 < cursor->segments && cursor->segment[at + 1]->start <= position)
		at++;
	for (uint32_t i = at; i < cursor->segments && i < at + 2; i++) {
		const struct order_segment *segment = cursor->segment[i];
		json_t *mix = json_object();

		for (uint32_t d = 0; d < segment->datasets && json_object_size(mix) < MIXED; d++)
			if (segment->units[d] > 0)
				json_object_set_new(mix, cursor->dataset[d].name,
					json_real((double)segment->units[d] / (double)ORDER_UNITS));
		json_array_append_new(list,
			json_pack("{s:I, s:o}", "from", (json_int_t)segment->start, "mix", mix));
	}
	return list;
}

/* The first session of each run: all have one mix. */
static void put_runs(struct page *p, const struct control *control)
{
	const struct session *first[RUNS];
	unsigned n = 0, i;

	for (uint32_t id = 0; id < LIMIT_SESSIONS && n < RUNS; id++) {
		const struct session *s = control->sessions.of[id];

		if (!session_is_live(s))
			continue;
		for (i = 0; i < n; i++)
			if (s->stream == first[i]->stream && strcmp(s->run, first[i]->run) == 0)
				break;
		first[i] = s;
		n += i == n;
	}
	for (i = 0; i < RUNS; i++)
		if (wants(p) && i < n)
			put(p, "runs",
				json_pack("{s:s, s:s, s:o}", "stream",
					first[i]->stream->config->name, "run", first[i]->run,
					"mixes", mixes_of(first[i])));
}

static void put_sessions(struct page *p, const struct control *control)
{
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (wants(p) && session_is_live(control->sessions.of[id]))
			put(p, "sessions", session_item(control->sessions.of[id], p->public));
}

/* ---- stores ---- */

static struct store_sample sample_of(const struct store_status *s, uint64_t now_ms)
{
	struct store_sample sample = {
		.ms = now_ms, .requests = s->requests, .bytes = s->bytes, .retries = s->retries};

	memcpy(sample.first_byte, s->first_byte, sizeof(sample.first_byte));
	return sample;
}

void status_clock(struct store_reports *r, uint64_t now_ms)
{
	struct store_status status;

	for (unsigned i = 0; i < STATUS_STORES && r->stores; i++) {
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

/* Within how many milliseconds @part of the answers since @from began; null: there are none. */
static json_t *quantile(
	const struct store_sample *from, const struct store_sample *now, double part)
{
	double all = 0, before = 0, most = 1, least = 0;

	for (unsigned i = 0; i < STORE_TIMES; i++)
		all += (double)(now->first_byte[i] - from->first_byte[i]);
	if (all == 0)
		return json_null();
	for (unsigned i = 0; i < STORE_TIMES; i++, least = most, most *= 2) {
		double n = (double)(now->first_byte[i] - from->first_byte[i]);

		if (n > 0 && before + n >= part * all)
			return json_real(least + (most - least) * (part * all - before) / n);
		before += n;
	}
	return json_real(least);
}

static void set_rates(json_t *item, const struct store_sample *from, const struct store_sample *now)
{
	double seconds = (double)(now->ms - from->ms) / 1000,
	       requests = (double)(now->requests - from->requests);

	if (from->ms == 0 || seconds <= 0)
		seconds = 1e300;
	json_object_set_new(item, "get_per_s", json_real(requests / seconds));
	json_object_set_new(
		item, "bytes_per_s", json_real((double)(now->bytes - from->bytes) / seconds));
	json_object_set_new(item, "retried",
		json_real(requests > 0 ? (double)(now->retries - from->retries) / requests : 0));
	json_object_set_new(item, "p50_ms", quantile(from, now, 0.5));
	json_object_set_new(item, "p99_ms", quantile(from, now, 0.99));
}

static void set_last(json_t *item, const char *last, int64_t ago_s)
{
	set_text(item, "last", last, false);
	json_object_set_new(item, "last_ago_s", last[0] ? json_integer(ago_s) : json_null());
}

static json_t *faults_of(const struct store_status *s)
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

static json_t *store_item(
	const struct store_status *s, const struct store_sample *from, uint64_t now_ms)
{
	struct store_sample now = sample_of(s, now_ms);
	uint64_t most_ns[STORE_TIMES - 1] = {1000000};
	json_t *item = json_object();

	set_text(item, "store", s->name, false);
	set_rates(item, from, &now);
	set(item, "in_flight", s->in_flight);
	set(item, "limit", s->limit);
	set(item, "waiting", s->waiting);
	set(item, "requests", s->requests);
	set(item, "bytes", s->bytes);
	set(item, "used_bytes", s->used_bytes);
	set(item, "retries", s->retries);
	json_object_set_new(item, "faults", faults_of(s));
	set_text(item, "provider", s->provider, false);
	json_object_set_new(item, "credentials_s",
		s->expires_s == INT64_MAX ? json_null() : json_integer(s->expires_s));
	set_last(item, s->last, s->last_ago_s);
	for (unsigned i = 1; i < STORE_TIMES - 1; i++)
		most_ns[i] = 2 * most_ns[i - 1];
	json_object_set_new(item, "first_byte",
		histogram(s->first_byte, most_ns, STORE_TIMES - 1, s->first_byte_seconds));
	return item;
}

json_t *status_cache(const struct store_reports *r, bool public)
{
	struct store_cache_status status;
	json_t *item;

	if (!r->stores || !store_cache_status(r->stores, &status))
		return json_null();
	item = json_object();
	set_text(item, "dir", status.dir, public);
	set(item, "size_bytes", status.size_bytes);
	set(item, "used_bytes", status.used_bytes);
	set(item, "objects", status.objects);
	set(item, "hits", status.hits);
	set(item, "misses", status.misses);
	set(item, "evictions", status.evictions);
	set(item, "mismatches", status.mismatches);
	set(item, "pinned", status.pinned);
	set(item, "failing_s", status.failing_s);
	set_last(item, status.last, status.last_ago_s);
	return item;
}

static void put_stores(struct page *p, const struct store_reports *r, uint64_t now_ms)
{
	struct store_status status;

	for (unsigned i = 0; i < STATUS_STORES; i++)
		if (wants(p) && r->stores && store_status(r->stores, i, &status))
			put(p, "stores", store_item(&status, &r->of[i].older, now_ms));
	if (wants(p)) {
		json_t *cache = status_cache(r, p->public);

		if (json_is_object(cache)) /* for the metric; tokctl cache has the seconds */
			set(cache, "failing",
				json_integer_value(json_object_get(cache, "failing_s")) > 0);
		put(p, "cache", cache);
	}
}

/* ---- the daemon ---- */

static json_t *daemon_item(const struct control *control, bool public)
{
	const struct stream *slow = hang_longest(&control->hangs);
	uint64_t now = uv_now(control->loop);
	struct utsname machine = {0};
	json_t *item = json_object();

	uname(&machine);
	set_text(item, "version", TOKEND_VERSION, false);
#ifdef __clang__
	set_text(item, "compiler", "clang", false);
#else
	set_text(item, "compiler", "gcc", false);
#endif
	set_text(item, "machine", machine.machine, false);
	set_text(item, "io", reader_name(control->reader), false);
	set(item, "sessions", control->sessions.n);
	set(item, "uptime_ms", now - control->started_ms);
	set(item, "silent_ms", now - control->turned_ms);
	set(item, "memory_bytes", control->sessions.memory_bytes);
	set(item, "limit_bytes", control->config->memory_bytes);
	set(item, "lost_wakes", control->sessions.lost_wakes);
	set(item, "failures", control->sessions.failures);
	set(item, "rereads", atomic_load(control->rereads));
	if (slow) {
		set_text(item, "slow_stream", slow->config->name, false);
		set_slow(item, hang_of(&control->hangs, slow), public);
	}
	if (!public)
		set(item, "pid", (uint64_t)uv_os_getpid());
	return item;
}

static json_t *process_item(const struct process *process)
{
	struct process_figures figures;
	struct rusage usage = {0};
	json_t *item = json_object();

	getrusage(RUSAGE_SELF, &usage);
	json_object_set_new(item, "cpu_s",
		json_real((double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
			  (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6));
	if (!process_read(process, &figures))
		return item;
	set(item, "resident_bytes", figures.resident_bytes);
	set(item, "virtual_bytes", figures.virtual_bytes);
	set(item, "descriptors", figures.descriptors);
	set(item, "descriptors_most", figures.descriptors_most);
	set(item, "threads", figures.threads);
	json_object_set_new(item, "start_s", json_real(process->start_s));
	return item;
}

static json_t *config_item(const struct control *control)
{
	const struct counts *counts = &control->counts;
	json_t *item = json_pack("{s:I, s:i, s:{s:I, s:I}}", "load_s", (json_int_t)counts->reload_s,
		"reload_failed", (int)counts->reload_failed, "reloads", "loaded",
		(json_int_t)counts->reloads, "refused", (json_int_t)counts->reloads_failed);

	set_digest(item, control->config->digest);
	return item;
}

static json_t *request_items(const struct counts *counts)
{
	static const char *const outcomes[COUNTS_OUTCOMES] = {
		"done", "failed", "refused", "taken_back"};
	json_t *list = json_array();

	for (unsigned kind = 0; kind < COUNTS_KINDS; kind++) {
		json_t *ended = json_object();

		for (unsigned i = 0; i < COUNTS_OUTCOMES; i++)
			set(ended, outcomes[i], counts->requests[kind][i]);
		json_array_append_new(
			list, json_pack("{s:s, s:o}", "kind", counts_kind[kind], "ended", ended));
	}
	return list;
}

static json_t *fault_items(bool public)
{
	struct log_fault fault[LOG_FAULTS];
	unsigned n = log_faults(fault);
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(
			list, json_pack("{s:I, s:s, s:o}", "time", (json_int_t)fault[i].at, "level",
				      fault[i].level == LOG_ERROR ? "error" : "warning", "text",
				      text_of(fault[i].text, public)));
	return list;
}

static void put_document(struct page *p, struct control *control)
{
	status_gauges(control);
	if (wants(p))
		put(p, "daemon", daemon_item(control, p->public));
	if (wants(p))
		put(p, "process", process_item(&control->process));
	if (wants(p))
		put(p, "config", config_item(control));
	if (wants(p))
		put(p, "state_dir",
			json_pack("{s:i, s:I}", "jobs", (int)control->state.jobs.n, "busy_ms",
				(json_int_t)state_busy_ms(&control->state.jobs)));
	if (wants(p))
		put(p, "requests", request_items(&control->counts));
	if (wants(p))
		put(p, "faults", fault_items(p->public));
	put_stores(p, &control->stores, uv_now(control->loop));
	put_streams(p, control);
	put_runs(p, control);
	put_sessions(p, control);
}

/* The config's absolute path: a relative one is only valid in this process's directory. */
static void name_config(const struct config *config, char *path, size_t path_bytes)
{
	const char *slash = strrchr(config->path, '/');

	snprintf(path, path_bytes, "%s/%s",
		strcmp(config->directory, "/") == 0 ? "" : config->directory,
		slash ? slash + 1 : config->path);
}

void status_reply(struct connection *c, const struct wire *w)
{
	struct page *p = calloc(1, sizeof(*p));
	struct wire reply = {.op = WIRE_STATUS};
	char path[LIMIT_TEXT_BYTES];
	struct fault fault;

	if (!p) {
		fault_memory(&fault);
		connection_refuse(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	p->after = wire_number(w, WIRE_AFTER);
	p->public = c->uid == c->user->all->web_uid || wire_has(w, WIRE_PUBLIC);
	put_document(p, c->control);
	if (!p->public) { /* not in the document: its bytes need not be UTF-8 */
		name_config(c->control->config, path, sizeof(path));
		wire_set_text(&reply, WIRE_PATH, path);
	}
	if (p->n == 0)
		p->text[p->n++] = '[';
	p->text[p->n++] = ']';
	wire_set(&reply, WIRE_AFTER, p->full ? p->after : 0);
	wire_set_bytes(&reply, WIRE_ARGS, p->text, p->n);
	connection_send(c, wire_number(w, WIRE_SERIAL), &reply);
	free(p);
}
