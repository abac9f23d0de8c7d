/*
 * The state of the daemon as one JSON document, which tokctl status, metrics and serve read
 * (wire.h: status). It is a list of items, {"session": {…}} and the like, in an order that depends
 * on the config only. A page is as many of them as fit in a packet; the next page goes on with the
 * next item. Nothing outlives the reply.
 */
#include "daemon/control/control.h"
#include "proto/version.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum {
	RUNS = 32,	   /* with their mixes */
	MIXED = 32,	   /* datasets of one mix */
	WINDOW_MS = 10000, /* rates of stores are over one to two of these */
};

struct page {
	uint64_t at;	/* number of the item that comes next in the document */
	uint64_t first; /* that of the first item of this page */
	uint64_t next;	/* and of the next page; 0: none, or this one is not full yet */
	bool public;	/* for anyone who reaches a port: without directories, pids and hosts */
	size_t n;
	char text[LIMIT_PACKET_BYTES - 2 * LIMIT_TEXT_BYTES];
};

/* Does the next item of the document belong to the page? */
static bool wants(struct page *p)
{
	return p->at++ >= p->first && !p->next;
}

/* Puts the item that wants() was asked about, which is freed. NULL: there is none. */
static void put(struct page *p, const char *name, json_t *value)
{
	json_t *item = json_pack("{s:o}", name, value);
	/* Without the brackets. A page may be full to its last byte. */
	size_t room = sizeof(p->text) - MIN(p->n + 2, sizeof(p->text)), n = 0;

	if (item)
		n = json_dumpb(
			item, p->text + p->n + 1, room, JSON_COMPACT | JSON_REAL_PRECISION(15));
	json_decref(item);
	if (n > room && p->n > 0)
		p->next = p->at - 1;
	if (n == 0 || n > room)
		return;
	p->text[p->n] = p->n == 0 ? '[' : ',';
	p->n += n + 1;
}

#define PUT(p, name, value) (wants(p) ? put(p, name, value) : (void)0)

/* ---- objects ---- */

struct member {
	const char *name; /* "": it is left out */
	json_t *value;
};

/* Numbers above 2^63 become negative: the reader casts them back. */
#define N(name, number)	  ((struct member){name, json_integer((json_int_t)(number))})
#define T(name, text)	  ((struct member){name, line(text)})
#define V(name, value)	  ((struct member){name, value})
#define ONLY(given, name) ((given) ? (name) : "")
#define OBJECT(...)	  object((const struct member[]){__VA_ARGS__, V(NULL, NULL)})

static json_t *line(const char *text)
{
	char clean[LIMIT_TEXT_BYTES];

	snprintf(clean, sizeof(clean), "%s", text);
	return json_string(fault_line(clean));
}

/* Members without memory are left out. */
static json_t *object(const struct member *m)
{
	json_t *object = json_object();

	for (; m->name; m++)
		if (m->name[0])
			json_object_set_new(object, m->name, m->value);
		else
			json_decref(m->value);
	return object;
}

static json_t *hex(uint64_t digest)
{
	return json_sprintf("%016" PRIx64, digest);
}

/* Of paths in a public text, only the last part is left. Returns @to. */
static const char *without_paths(const char *text, bool public, char to[LIMIT_TEXT_BYTES])
{
	size_t n = 0;

	for (; *text && n + 1 < LIMIT_TEXT_BYTES; text++)
		if (!public || *text != '/')
			to[n++] = *text;
		else if (text[1] && text[1] != ' ')
			while (n > 0 && to[n - 1] != ' ')
				n--;
	to[n] = 0;
	return to;
}

/* How long the stream's storage has not answered; 0: it answers. @shard: which it waits for. */
static uint64_t slow_ms(const struct control *control, const struct stream *stream, bool public,
	char shard[LIMIT_TEXT_BYTES])
{
	struct reader_hang hang = data_thread_hang(control->data_thread, stream->slot);
	char path[LIMIT_TEXT_BYTES];

	shard[0] = 0;
	if (hang.ticks == 0)
		return 0;
	hang_shard(&hang, path, sizeof(path));
	without_paths(path, public, shard);
	return hang.ticks * UINT64_C(1000);
}

/* {"le": {"0.001": n, …, "+Inf": n}, "sum": seconds}, with the sums of @n + 1 buckets so far. */
static json_t *histogram(const uint64_t *bucket, const uint64_t *most_ns, unsigned n, double sum)
{
	json_t *le = json_object();
	char limit[32] = "+Inf";
	uint64_t so_far = 0;

	for (unsigned i = 0; i <= n; i++) {
		if (i < n)
			snprintf(limit, sizeof(limit), "%.9g", (double)most_ns[i] / 1e9);
		so_far += bucket[i];
		json_object_set_new(le, i < n ? limit : "+Inf", json_integer((json_int_t)so_far));
	}
	return OBJECT(V("le", le), V("sum", json_real(sum)));
}

/* ---- sessions and streams ---- */

static uint64_t store_wait_ms(const struct session *s, char text[LIMIT_TEXT_BYTES])
{
	struct stores *stores = s->control->options->stores;

	text[0] = 0;
	return stores ? store_waits(stores, s->id, text, LIMIT_TEXT_BYTES) * UINT64_C(1000) : 0;
}

static uint64_t full_ms(const struct session *s)
{
	return s->full_since_ms ? uv_now(s->control->loop) - s->full_since_ms : 0;
}

static json_t *session_item(const struct session *s, bool public)
{
	char shard[LIMIT_TEXT_BYTES], store[LIMIT_TEXT_BYTES];

	if (!session_is_live(s))
		return NULL;

	struct feed_counters c = feed_counters(s->feed);
	uint64_t slow = slow_ms(s->control, s->stream, public, shard),
		 wait = store_wait_ms(s, store);

	return OBJECT(T("stream", s->stream->config->name), T("run", s->run), N("session", s->id),
		N("rank", s->rank), N("world", s->world), N("micro", s->micro_batch),
		N("peer", s->peer), N("seq_len", s->stream->config->seq_len),
		N("position", session_position(s)), N("slots", s->slots),
		N("published", c.published), N("released", c.released),
		N("ready", c.published - c.released), N("full_ms", full_ms(s)),
		N("waits", count_of(&s->waits)), N("waited_ms", count_of(&s->waited_ns) / 1000000),
		N("memory_bytes", s->bytes), N("request", request_number(s)),
		N(ONLY(slow, "slow_ms"), slow), T(ONLY(slow, "slow_shard"), shard),
		N(ONLY(wait, "store_wait_ms"), wait), T(ONLY(wait, "store_wait"), store),
		N(ONLY(!public, "pid"), s->connection->pid),
		T(ONLY(!public, "host"), s->connection->host));
}

/* The present state of sessions. */
struct stream_gauges {
	unsigned sessions, waiting;
	uint64_t slots, ready;	      /* batches, of all rings */
	uint64_t least_ready;	      /* of one ring */
	uint64_t published, released; /* batches */
	uint64_t full_ms;	      /* the longest: struct session */
	uint64_t store_wait_ms;	      /* the longest */
};

/* Of the sessions of a stream; NULL: of all, without waits for stores. */
static struct stream_gauges gauges_of(const struct control *control, const struct stream *stream)
{
	struct stream_gauges g = {.least_ready = UINT64_MAX};
	const struct session *s;
	char text[LIMIT_TEXT_BYTES];

	for (SESSIONS(s, control, stream, NULL)) {
		struct feed_counters c = feed_counters(s->feed);
		uint64_t ready = c.published - c.released;

		g.sessions++;
		g.waiting += c.waits;
		g.slots += s->slots;
		g.ready += ready;
		g.least_ready = ready < g.least_ready ? ready : g.least_ready;
		g.published += c.published;
		g.released += c.released;
		g.full_ms = MAX(g.full_ms, full_ms(s));
		if (stream)
			g.store_wait_ms = MAX(g.store_wait_ms, store_wait_ms(s, text));
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

static json_t *stream_item(const struct control *control, const struct stream *stream, bool public)
{
	const struct stream_counts *c = stream->counts;
	const _Atomic uint64_t *faults = c->read_faults;
	struct stream_gauges now = gauges_of(control, stream);
	char shard[LIMIT_TEXT_BYTES];
	uint64_t slow = slow_ms(control, stream, public, shard);

	return OBJECT(T("stream", stream->config->name), N("seq_len", stream->config->seq_len),
		N("sessions", now.sessions), N("waiting", now.waiting), N("slots", now.slots),
		N("ready", now.ready), N(ONLY(now.sessions, "least_ready"), now.least_ready),
		N("full_ms", now.full_ms), N("slow_ms", slow), T(ONLY(slow, "slow_shard"), shard),
		N("store_wait_ms", now.store_wait_ms), N("published", c->published + now.published),
		N("released", c->released + now.released),
		N("read_bytes", count_of(&c->read_bytes)),
		V("attaches", OBJECT(N("first", c->attaches - c->attaches_again),
				      N("again", c->attaches_again))),
		V("snapshots", OBJECT(N("made", c->snapshots), N("failed", c->snapshots_failed))),
		V("snapshot_times",
			OBJECT(N(ONLY(c->snapshot_s > 0, "made"), c->snapshot_s),
				N(ONLY(c->snapshot_failed_s > 0, "failed"), c->snapshot_failed_s))),
		V("waits", times(&c->waits)), V("reads", times(&c->reads)),
		V("read_errors", OBJECT(N("io", count_of(&faults[FAULT_IO])),
					 N("data", count_of(&faults[FAULT_DATA])),
					 N("changed", count_of(&faults[FAULT_CHANGED])),
					 N("token", count_of(&faults[FAULT_TOKEN])),
					 N("memory", count_of(&faults[FAULT_MEMORY])),
					 N("descriptors", count_of(&faults[FAULT_DESCRIPTORS])))));
}

/* The pieces of a dataset in a store; 0: it is read by window. */
static uint64_t pieces_of(const struct dataset *d)
{
	uint64_t pieces = 0;

	for (uint64_t s = 0; d->piece > 0 && s < d->table.shards; s++)
		pieces += (d->entry[s].bytes + d->piece - 1) / d->piece;
	return pieces;
}

static json_t *dataset_item(const struct stream *stream, uint32_t d, bool public)
{
	const struct dataset *dataset = &stream->dataset[d];
	bool stored = dataset->bucket && !public;

	return OBJECT(V("digest", hex(dataset->digest)), T("stream", stream->config->name),
		T("dataset", stream->config->dataset[d].name),
		N("samples", count_of(dataset->samples)),
		T(ONLY(stored, "url"), dataset->list.root),
		T(ONLY(stored, "manifest"), stream->config->dataset[d].manifest),
		N(ONLY(stored, "pieces"), pieces_of(dataset)));
}

/* The mix at the session's position, and the next one. */
static json_t *mixes_of(const struct session *s)
{
	const struct cursor *cursor = feed_cursor(s->feed);
	uint64_t position = session_position(s);
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
		json_array_append_new(list, OBJECT(N("from", segment->start), V("mix", mix)));
	}
	return list;
}

/* The first runs, and their mixes: all sessions of a run have one. There are always RUNS items, so
 * that the items after them keep their place. */
static void put_runs(struct page *p, const struct control *control)
{
	const struct session *first[RUNS], *s;
	unsigned n = 0;

	for (SESSIONS(s, control, NULL, NULL))
		if (n < RUNS && session_next(control, 0, s->stream, s->run) == s)
			first[n++] = s;
	for (unsigned i = 0; i < RUNS; i++)
		PUT(p, "runs",
			i >= n ? NULL
			       : OBJECT(T("stream", first[i]->stream->config->name),
					 T("run", first[i]->run), V("mixes", mixes_of(first[i]))));
}

/* ---- stores ---- */

void status_clock(struct control *control)
{
	uint64_t now_ms = uv_now(control->loop);
	struct stores *stores = control->options->stores;
	struct store_status now;

	for (unsigned i = 0; stores && i < STATUS_STORES && store_status(stores, i, &now); i++) {
		struct store_report *r = &control->store_reports[i];

		if (r->newer_ms == 0) /* its counters began with 0 in the last second */
			r->older_ms = r->newer_ms = now_ms > 1000 ? now_ms - 1000 : 1;
		if (now_ms - r->newer_ms < WINDOW_MS)
			continue;
		r->older = r->newer;
		r->older_ms = r->newer_ms;
		r->newer = now;
		r->newer_ms = now_ms;
	}
}

/* Within how many milliseconds @part of the answers since @from began; null: there are none. */
static json_t *quantile(
	const struct store_status *from, const struct store_status *now, double part)
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

static json_t *faults_of(const struct store_status *s)
{
	json_t *faults = json_object();
	char code[16] = "none";

	for (unsigned i = 0; i < sizeof(s->faults) / sizeof(s->faults[0]); i++) {
		if (i > 0)
			snprintf(code, sizeof(code), "%u", i);
		if (s->faults[i] > 0)
			json_object_set_new(faults, code, json_integer((json_int_t)s->faults[i]));
	}
	return faults;
}

static json_t *store_item(const struct control *control, unsigned i)
{
	const struct store_report *r = &control->store_reports[i];
	const struct store_status *from = &r->older;
	struct stores *stores = control->options->stores;
	uint64_t now_ms = uv_now(control->loop);
	uint64_t most_ns[STORE_TIMES - 1];
	struct store_status s;

	if (!stores || !store_status(stores, i, &s))
		return NULL;

	bool known = r->older_ms > 0 && now_ms > r->older_ms;
	double seconds = known ? (double)(now_ms - r->older_ms) / 1000 : 1e300;
	double requests = (double)(s.requests - from->requests);
	double retries = (double)(s.retries - from->retries);

	for (i = 0; i < STORE_TIMES - 1; i++)
		most_ns[i] = UINT64_C(1000000) << i;
	return OBJECT(V("get_per_s", json_real(requests / seconds)),
		V("bytes_per_s", json_real((double)(s.bytes - from->bytes) / seconds)),
		V("retried", json_real(requests > 0 ? retries / requests : 0)),
		V("p50_ms", quantile(from, &s, 0.5)), V("p99_ms", quantile(from, &s, 0.99)),
		T("store", s.name), N("in_flight", s.in_flight), N("limit", s.limit),
		N("waiting", s.waiting), N("requests", s.requests), N("bytes", s.bytes),
		N("used_bytes", s.used_bytes), N("retries", s.retries), V("faults", faults_of(&s)),
		T("provider", s.provider),
		V("credentials_s",
			s.expires_s == INT64_MAX ? json_null() : json_integer(s.expires_s)),
		T("last", s.last),
		V("last_ago_s", s.last[0] ? json_integer(s.last_ago_s) : json_null()),
		V("first_byte",
			histogram(s.first_byte, most_ns, STORE_TIMES - 1, s.first_byte_seconds)));
}

static json_t *cache_item(const struct control *control, bool public)
{
	struct stores *stores = control->options->stores;
	struct store_cache_status s;
	char dir[LIMIT_TEXT_BYTES];

	if (!stores || !store_cache_status(stores, &s))
		return json_null();
	return OBJECT(T("dir", without_paths(s.dir, public, dir)), N("size_bytes", s.size_bytes),
		N("used_bytes", s.used_bytes), N("hits", s.hits), N("misses", s.misses),
		N("evictions", s.evictions), N("mismatches", s.mismatches),
		N("failing_s", s.failing_s), N("failing", s.failing_s > 0), T("last", s.last),
		V("last_ago_s", s.last[0] ? json_integer(s.last_ago_s) : json_null()));
}

/* ---- the daemon ---- */

static json_t *daemon_item(const struct control *control, bool public)
{
	uint64_t now = uv_now(control->loop);
	struct utsname machine = {0};

	uname(&machine);
	return OBJECT(T("version", TOKEND_VERSION), T("compiler", __VERSION__),
		T("machine", machine.machine),
		T("io", reader_name(control->options->reading->reader)),
		N("sessions", control->sessions.n), N("uptime_ms", now - control->started_ms),
		N("silent_ms", now - control->turned_ms),
		N("memory_bytes", control->sessions.memory_bytes),
		N("limit_bytes", control->config->memory_bytes),
		N("failures", control->sessions.failures),
		N("rereads", atomic_load(control->options->rereads)),
		N(ONLY(!public, "pid"), uv_os_getpid()));
}

static json_t *process_item(void)
{
	uint64_t threads = 0, virtual_bytes = 0, pages = 0, descriptors = 0;
	FILE *stat = fopen("/proc/self/stat", "re"); /* does not hang */
	DIR *fds = opendir("/proc/self/fd");
	struct rlimit limit = {0};
	bool known = stat && fds &&
		     fscanf(stat,
			     "%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d"
			     " %*d %*d %" SCNu64 " %*d %*u %" SCNu64 " %" SCNu64,
			     &threads, &virtual_bytes, &pages) == 3;

	for (const struct dirent *entry; known && (entry = readdir(fds));)
		descriptors += entry->d_name[0] != '.';
	if (stat)
		fclose(stat);
	if (fds)
		closedir(fds);
	getrlimit(RLIMIT_NOFILE, &limit);
	return OBJECT(V("cpu_s", json_real((double)clock() / CLOCKS_PER_SEC)),
		N(ONLY(known, "resident_bytes"), pages * (uint64_t)sysconf(_SC_PAGESIZE)),
		N(ONLY(known, "virtual_bytes"), virtual_bytes),
		N(ONLY(known, "descriptors"), descriptors), N("descriptors_most", limit.rlim_cur),
		N(ONLY(known, "threads"), threads));
}

static json_t *config_item(const struct control *control)
{
	const struct reload_kept *kept = control->options->kept;
	const struct reload *r = &control->reload;

	return OBJECT(N("load_s", control->counts.begun_s), N("reload_failed", r->refused[0] != 0),
		V("reloads", OBJECT(N("loaded", kept->reloads), N("refused", kept->refused))),
		V("digest", hex(control->config->digest)));
}

static json_t *request_items(const struct counts *counts)
{
	json_t *list = json_array();

	for (unsigned kind = 0; kind < COUNTS_KINDS; kind++) {
		const uint64_t *n = counts->requests[kind];

		json_array_append_new(
			list, OBJECT(T("kind", counts_kind[kind]),
				      V("ended", OBJECT(N("done", n[COUNTS_DONE]),
							 N("failed", n[COUNTS_FAILED]),
							 N("refused", n[COUNTS_REFUSED]),
							 N("cancelled", n[COUNTS_CANCELLED])))));
	}
	return list;
}

static json_t *fault_items(bool public)
{
	struct log_fault fault[LOG_FAULTS];
	unsigned n = log_faults(fault);
	json_t *list = json_array();
	char text[LIMIT_TEXT_BYTES];

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(
			list, OBJECT(N("time", fault[i].at),
				      T("level", fault[i].level == LOG_ERROR ? "error" : "warning"),
				      T("text", without_paths(fault[i].text, public, text))));
	return list;
}

static void put_document(struct page *p, const struct control *control)
{
	const struct stream *stream = control->catalog->stream;
	const uint32_t streams = control->config->streams;

	PUT(p, "daemon", daemon_item(control, p->public));
	PUT(p, "process", process_item());
	PUT(p, "config", config_item(control));
	PUT(p, "state_dir",
		OBJECT(N("jobs", control->state.jobs),
			N("busy_ms", state_busy_ms(&control->state))));
	PUT(p, "requests", request_items(&control->counts));
	PUT(p, "faults", fault_items(p->public));
	for (unsigned i = 0; i < STATUS_STORES; i++)
		PUT(p, "stores", store_item(control, i));
	PUT(p, "cache", cache_item(control, p->public));
	for (uint32_t i = 0; i < streams; i++)
		PUT(p, "streams", stream_item(control, &stream[i], p->public));
	for (uint32_t i = 0; i < streams; i++)
		for (uint32_t d = 0; d < stream[i].config->datasets; d++)
			PUT(p, "datasets", dataset_item(&stream[i], d, p->public));
	put_runs(p, control);
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		PUT(p, "sessions", session_item(control->sessions.of[id], p->public));
}

void status_reply(struct connection *c, const struct wire *w)
{
	const struct config *config = c->control->config;
	struct page p = {.first = wire_number(w, WIRE_AFTER),
		.public = c->uid == c->user->all->web_uid || wire_has(w, WIRE_PUBLIC)};
	struct wire reply = {.op = WIRE_STATUS};
	char path[LIMIT_TEXT_BYTES];

	put_document(&p, c->control);
	if (!p.public) { /* absolute; not in the document, because its bytes need not be UTF-8 */
		snprintf(path, sizeof(path), "%s/%s",
			strcmp(config->directory, "/") == 0 ? "" : config->directory,
			bytes_name(config->path));
		wire_set_text(&reply, WIRE_PATH, path);
	}
	if (p.n == 0)
		p.text[p.n++] = '[';
	p.text[p.n++] = ']';
	wire_set(&reply, WIRE_AFTER, p.next);
	wire_set_bytes(&reply, WIRE_ARGS, p.text, p.n);
	connection_send(c, wire_number(w, WIRE_SERIAL), &reply);
}

void status_notify(struct control *control, bool ready)
{
	struct stream_gauges all = gauges_of(control, NULL);
	const char *refused = control->reload.refused;
	uint32_t streams = control->config->streams;
	char text[sizeof(control->notified)];

	snprintf(text, sizeof(text),
		"READY=1\nSTATUS=%u session%s, %" PRIu32 " stream%s, %u waiting%s%s", all.sessions,
		all.sessions == 1 ? "" : "s", streams, streams == 1 ? "" : "s", all.waiting,
		refused[0] ? "; config not read again: " : "", refused);
	if (!ready && strcmp(text, control->notified) == 0)
		return;
	memcpy(control->notified, text, sizeof(text));
	notify(ready ? text : strchr(text, '\n') + 1);
}
