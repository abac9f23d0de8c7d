/*
 * The state of the daemon as one JSON document, which tokctl status, top, metrics and serve read
 * (wire.h: status). It is made anew for each query. On the loop.
 *
 * The document is a list of items, {"session": {…}} and the like, in an order that depends on the
 * config only. A page is as many of them as fit in a packet; the next page goes on with the next
 * item. Nothing outlives the reply.
 */
#include "daemon/control/control.h"
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

#ifdef __clang__
#define COMPILER "clang"
#else
#define COMPILER "gcc"
#endif

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

struct number {
	const char *name;
	uint64_t value;
};

#define NUMBERS(...) ((const struct number[]){__VA_ARGS__, {NULL, 0}})

/* Numbers above 2^63 become negative: the reader casts them back. */
static void set(json_t *object, const struct number *n)
{
	for (; n->name; n++)
		json_object_set_new(object, n->name, json_integer((json_int_t)n->value));
}

/* Of paths in a public text, only the last part is left. */
static json_t *text_of(const char *text, bool public)
{
	char clean[LIMIT_TEXT_BYTES];
	size_t n = 0;

	for (; *text && n + 1 < sizeof(clean); text++)
		if (!public || *text != '/')
			clean[n++] = *text;
		else if (text[1] && text[1] != ' ')
			while (n > 0 && clean[n - 1] != ' ')
				n--;
	clean[n] = 0;
	return json_string(fault_line(clean));
}

static void set_text(json_t *object, const char *name, const char *text, bool public)
{
	json_object_set_new(object, name, text_of(text, public));
}

/* If the stream's storage does not answer. */
static void set_slow(
	json_t *object, const struct control *control, const struct stream *stream, bool public)
{
	const struct reader_hang *hang = hang_of(&control->hangs, stream);
	char path[LIMIT_TEXT_BYTES];

	if (hang->ticks == 0)
		return;
	hang_shard(hang, path, sizeof(path));
	set(object, NUMBERS({"slow_ms", hang->ticks * UINT64_C(1000)}));
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
		set(le, NUMBERS({limit, so_far += bucket[i]}));
	}
	set(le, NUMBERS({"+Inf", so_far + bucket[n]}));
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

static uint64_t full_ms(const struct session *s)
{
	return s->full_since_ms ? uv_now(s->control->loop) - s->full_since_ms : 0;
}

static json_t *session_item(const struct session *s, bool public)
{
	struct feed_counters c = feed_counters(s->feed);
	struct data_thread_waits waits = data_thread_waits(s->control->data_thread, s->id);
	char text[LIMIT_TEXT_BYTES];
	unsigned wait_s = store_wait(s, text);
	json_t *item = json_object();

	set_text(item, "stream", s->stream->config->name, false);
	set_text(item, "run", s->run, false);
	set(item, NUMBERS({"session", s->id}, {"rank", s->rank}, {"world", s->world},
			  {"micro", s->micro_batch}, {"peer", s->peer},
			  {"seq_len", s->stream->config->seq_len}, {"position", position_of(s)},
			  {"slots", s->slots}, {"published", c.published}, {"released", c.released},
			  {"ready", c.published - c.released}, {"full_ms", full_ms(s)},
			  {"lost_wakes", c.lost_wakes}, {"waits", waits.times},
			  {"waited_ms", waits.ns / 1000000}, {"memory_bytes", s->bytes},
			  {"request", request_number(s)}));
	set_slow(item, s->control, s->stream, public);
	if (wait_s > 0) {
		set(item, NUMBERS({"store_wait_ms", wait_s * UINT64_C(1000)}));
		set_text(item, "store_wait", text, false);
	}
	if (s->memory.node != RING_MEMORY_ANYWHERE)
		set(item, NUMBERS({"node", s->memory.node}));
	if (public)
		return item;
	set(item, NUMBERS({"pid", (uint64_t)s->connection->pid}));
	set_text(item, "host", s->connection->host, false);
	return item;
}

struct stream_gauges status_gauges(const struct control *control, const struct stream *stream)
{
	struct stream_gauges g = {.least_ready = UINT64_MAX};
	char text[LIMIT_TEXT_BYTES];

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		if (!session_is_live(s) || (stream && s->stream != stream))
			continue;

		struct feed_counters c = feed_counters(s->feed);
		uint64_t ready = c.published - c.released, full = full_ms(s);
		uint64_t wait_ms = stream ? store_wait(s, text) * UINT64_C(1000) : 0;

		g.sessions++;
		g.waiting += c.waits;
		g.slots += s->slots;
		g.ready += ready;
		g.least_ready = ready < g.least_ready ? ready : g.least_ready;
		g.published += c.published;
		g.released += c.released;
		g.full_ms = full > g.full_ms ? full : g.full_ms;
		g.store_wait_ms = wait_ms > g.store_wait_ms ? wait_ms : g.store_wait_ms;
	}
	return g;
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
		set(errors, NUMBERS({kinds[k].kind, count_of(&c->read_faults[kinds[k].code])}));
	return errors;
}

static json_t *stream_item(const struct control *control, const struct stream *stream, bool public)
{
	const struct stream_counts *c = stream->counts;
	struct stream_gauges now = status_gauges(control, stream);
	json_t *saves = json_object(), *item;

	if (c->snapshot_s > 0)
		set(saves, NUMBERS({"made", (uint64_t)c->snapshot_s}));
	if (c->snapshot_failed_s > 0)
		set(saves, NUMBERS({"failed", (uint64_t)c->snapshot_failed_s}));
	item = json_pack("{s:{s:I, s:I}, s:{s:I, s:I}, s:o, s:o, s:o, s:o}", "attaches", "first",
		(json_int_t)(c->attaches - c->attaches_again), "again",
		(json_int_t)c->attaches_again, "snapshots", "made", (json_int_t)c->snapshots,
		"failed", (json_int_t)c->snapshots_failed, "snapshot_times", saves, "waits",
		times(&c->waits), "reads", times(&c->reads), "read_errors", read_errors(c));
	set_text(item, "stream", stream->config->name, false);
	set(item, NUMBERS({"seq_len", stream->config->seq_len}, {"sessions", now.sessions},
			  {"waiting", now.waiting}, {"slots", now.slots}, {"ready", now.ready},
			  {"full_ms", now.full_ms}, {"slow_ms", 0},
			  {"store_wait_ms", now.store_wait_ms},
			  {"published", c->published + now.published},
			  {"released", c->released + now.released},
			  {"read_bytes", count_of(&c->read_bytes)}));
	if (now.sessions > 0)
		set(item, NUMBERS({"least_ready", now.least_ready}));
	set_slow(item, control, stream, public);
	return item;
}

static json_t *dataset_item(const struct stream *stream, uint32_t d)
{
	json_t *item = json_pack(
		"{s:o}", "digest", json_sprintf("%016" PRIx64, stream->dataset[d].digest));

	set_text(item, "stream", stream->config->name, false);
	set_text(item, "dataset", stream->config->dataset[d].name, false);
	set(item, NUMBERS({"samples", count_of(stream->dataset[d].samples)}));
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

static json_t *rates(const struct store_sample *from, const struct store_sample *now)
{
	double seconds = (double)(now->ms - from->ms) / 1000,
	       requests = (double)(now->requests - from->requests),
	       bytes = (double)(now->bytes - from->bytes),
	       retries = (double)(now->retries - from->retries);

	if (from->ms == 0 || seconds <= 0)
		seconds = 1e300;
	return json_pack("{s:f, s:f, s:f, s:o, s:o}", "get_per_s", requests / seconds,
		"bytes_per_s", bytes / seconds, "retried", requests > 0 ? retries / requests : 0.0,
		"p50_ms", quantile(from, now, 0.5), "p99_ms", quantile(from, now, 0.99));
}

static void set_last(json_t *item, const char *last, int64_t ago_s)
{
	set_text(item, "last", last, false);
	json_object_set_new(item, "last_ago_s", last[0] ? json_integer(ago_s) : json_null());
}

static json_t *faults_of(const struct store_status *s)
{
	json_t *faults = json_object();
	char code[16] = "none";

	for (unsigned i = 0; i < sizeof(s->faults) / sizeof(s->faults[0]); i++) {
		if (i > 0)
			snprintf(code, sizeof(code), "%u", i);
		if (s->faults[i] > 0)
			set(faults, NUMBERS({code, s->faults[i]}));
	}
	return faults;
}

static json_t *store_item(
	const struct store_status *s, const struct store_sample *from, uint64_t now_ms)
{
	struct store_sample now = sample_of(s, now_ms);
	uint64_t most_ns[STORE_TIMES - 1] = {1000000};
	json_t *item = rates(from, &now);

	set_text(item, "store", s->name, false);
	set(item, NUMBERS({"in_flight", s->in_flight}, {"limit", s->limit}, {"waiting", s->waiting},
			  {"requests", s->requests}, {"bytes", s->bytes},
			  {"used_bytes", s->used_bytes}, {"retries", s->retries}));
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
	set(item, NUMBERS({"size_bytes", status.size_bytes}, {"used_bytes", status.used_bytes},
			  {"objects", status.objects}, {"hits", status.hits},
			  {"misses", status.misses}, {"evictions", status.evictions},
			  {"mismatches", status.mismatches}, {"pinned", status.pinned},
			  {"failing_s", status.failing_s}, {"failing", status.failing_s > 0}));
	set_last(item, status.last, status.last_ago_s);
	return item;
}

static void put_stores(struct page *p, const struct store_reports *r, uint64_t now_ms)
{
	struct store_status status;

	for (unsigned i = 0; i < STATUS_STORES; i++)
		if (wants(p) && r->stores && store_status(r->stores, i, &status))
			put(p, "stores", store_item(&status, &r->of[i].older, now_ms));
	if (wants(p))
		put(p, "cache", status_cache(r, p->public));
}

/* ---- the daemon ---- */

static json_t *daemon_item(const struct control *control, bool public)
{
	const struct stream *slow = hang_longest(&control->hangs);
	uint64_t now = uv_now(control->loop);
	struct utsname machine = {0};
	json_t *item;

	uname(&machine);
	item = json_pack("{s:s, s:s, s:s, s:s}", "version", TOKEND_VERSION, "compiler", COMPILER,
		"machine", machine.machine, "io", reader_name(control->options->reader));
	set(item,
		NUMBERS({"sessions", control->sessions.n}, {"uptime_ms", now - control->started_ms},
			{"silent_ms", now - control->turned_ms},
			{"memory_bytes", control->sessions.memory_bytes},
			{"limit_bytes", control->config->memory_bytes},
			{"lost_wakes", control->sessions.lost_wakes},
			{"failures", control->sessions.failures},
			{"rereads", atomic_load(control->options->rereads)}));
	if (slow) {
		set_text(item, "slow_stream", slow->config->name, false);
		set_slow(item, control, slow, public);
	}
	if (!public)
		set(item, NUMBERS({"pid", (uint64_t)uv_os_getpid()}));
	return item;
}

static json_t *process_item(const struct process *process)
{
	struct process_figures f;
	struct rusage usage = {0};
	json_t *item;

	getrusage(RUSAGE_SELF, &usage);
	item = json_pack("{s:f}", "cpu_s",
		(double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
			(double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
	if (!process_read(process, &f))
		return item;
	set(item, NUMBERS({"resident_bytes", f.resident_bytes}, {"virtual_bytes", f.virtual_bytes},
			  {"descriptors", f.descriptors}, {"descriptors_most", f.descriptors_most},
			  {"threads", f.threads}));
	json_object_set_new(item, "start_s", json_real(process->start_s));
	return item;
}

static json_t *config_item(const struct control *control)
{
	const struct counts *counts = &control->counts;

	return json_pack("{s:I, s:i, s:{s:I, s:I}, s:o}", "load_s", (json_int_t)counts->reload_s,
		"reload_failed", (int)counts->reload_failed, "reloads", "loaded",
		(json_int_t)counts->reloads, "refused", (json_int_t)counts->reloads_failed,
		"digest", json_sprintf("%016" PRIx64, control->config->digest));
}

static json_t *request_items(const struct counts *counts)
{
	static const char *const outcomes[COUNTS_OUTCOMES] = {
		"done", "failed", "refused", "taken_back"};
	json_t *list = json_array();

	for (unsigned kind = 0; kind < COUNTS_KINDS; kind++) {
		json_t *ended = json_object();

		for (unsigned i = 0; i < COUNTS_OUTCOMES; i++)
			set(ended, NUMBERS({outcomes[i], counts->requests[kind][i]}));
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

static void put_document(struct page *p, const struct control *control)
{
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
