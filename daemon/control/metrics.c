/*
 * Labels are bounded: streams, datasets and the kinds that are listed here. Only the series of
 * sessions have others; `metrics_sessions:` adds them.
 */
#include "daemon/control/metrics.h"

#include "daemon/control/control.h"
#include "daemon/control/gauges.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/utsname.h>

/* ---- the format ---- */

static void header(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: quotes and backslashes are escaped. Names contain no line ends. */
static void put_escaped(FILE *to, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', to);
		fputc(*text, to);
	}
}

/* A line of @name, which has the labels that follow, and their values; NULL ends them. */
static void sample(FILE *to, const char *name, double value, ...)
{
	va_list labels;
	const char *label;
	char before = '{';

	fputs(name, to);
	va_start(labels, value);
	while ((label = va_arg(labels, const char *))) {
		fprintf(to, "%c%s=\"", before, label);
		put_escaped(to, va_arg(labels, const char *));
		fputc('"', to);
		before = ',';
	}
	va_end(labels);
	fprintf(to, "%s %.15g\n", before == ',' ? "}" : "", value);
}

static void plain(FILE *to, const char *name, const char *type, const char *help, double value)
{
	header(to, name, type, help);
	sample(to, name, value, NULL);
}

static double seconds(uint64_t ms)
{
	return (double)ms / 1000;
}

static void put_histogram(FILE *to, const char *name, const char *stream, const struct histogram *h)
{
	char part[64], most[32];
	uint64_t n = 0;

	snprintf(part, sizeof(part), "%s_bucket", name);
	for (unsigned i = 0; i <= COUNTS_BUCKETS; i++) {
		n += count_of(&h->bucket[i]);
		if (i < COUNTS_BUCKETS)
			snprintf(most, sizeof(most), "%.9g", (double)histogram_most_ns[i] / 1e9);
		else
			snprintf(most, sizeof(most), "+Inf");
		sample(to, part, (double)n, "stream", stream, "le", most, NULL);
	}
	snprintf(part, sizeof(part), "%s_sum", name);
	sample(to, part, (double)count_of(&h->sum_ns) / 1e9, "stream", stream, NULL);
	snprintf(part, sizeof(part), "%s_count", name);
	sample(to, part, (double)n, "stream", stream, NULL);
}

/* ---- the daemon ---- */

static void put_builds(FILE *to, const struct control *control)
{
	struct utsname machine = {0};

	uname(&machine);
	header(to, "tokend_info", "gauge", "Version and I/O backend");
	sample(to, "tokend_info", 1, "version", TOKEND_VERSION, "io", reader_name(control->reader),
		NULL);
	header(to, "tokend_build_info", "gauge", "How the daemon was built, and for which machine");
	sample(to, "tokend_build_info", 1, "version", TOKEND_VERSION, "compiler",
#ifdef __clang__
		"clang",
#else
		"gcc",
#endif
		"machine", machine.machine, NULL);
}

static double cpu_seconds(void)
{
	uv_rusage_t usage = {0};

	uv_getrusage(&usage);
	return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
	       ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6;
}

static void put_process(FILE *to, const struct process *process)
{
	struct process_figures p;

	plain(to, "process_cpu_seconds_total", "counter", "CPU time of the process", cpu_seconds());
	if (!process_read(process, &p))
		return;
	plain(to, "process_resident_memory_bytes", "gauge", "Resident memory, with touched rings",
		(double)p.resident_bytes);
	plain(to, "process_virtual_memory_bytes", "gauge", "Address space in use",
		(double)p.virtual_bytes);
	plain(to, "process_open_fds", "gauge", "Open file descriptors", (double)p.descriptors);
	plain(to, "process_max_fds", "gauge", "The most file descriptors that may be open",
		(double)p.descriptors_most);
	plain(to, "process_threads", "gauge", "Threads", (double)p.threads);
	plain(to, "process_start_time_seconds", "gauge", "When the process began, in Unix time",
		process->start_s);
}

static void put_config(FILE *to, const struct control *control)
{
	const struct counts *counts = &control->counts;
	char digest[20];

	snprintf(digest, sizeof(digest), "%016" PRIx64, control->config->digest);
	header(to, "tokend_config_info", "gauge", "Digest of the config file that is in use");
	sample(to, "tokend_config_info", 1, "digest", digest, NULL);
	plain(to, "tokend_config_load_time_seconds", "gauge",
		"When the config in use was loaded, in Unix time", (double)counts->reload_s);
	plain(to, "tokend_config_reload_failed", "gauge",
		"1: the last reload was refused, and an older config is in use",
		counts->reload_failed);
	header(to, "tokend_config_reloads_total", "counter", "Reloads of the config");
	sample(to, "tokend_config_reloads_total", (double)counts->reloads, "outcome", "loaded",
		NULL);
	sample(to, "tokend_config_reloads_total", (double)counts->reloads_failed, "outcome",
		"refused", NULL);
}

static void put_state_dir(FILE *to, const struct control *control)
{
	plain(to, "tokend_state_dir_jobs", "gauge",
		"Jobs for state_dir that wait or run: snapshots and mix log entries",
		keeper_jobs(control->keeper));
	plain(to, "tokend_state_dir_busy_seconds", "gauge",
		"How long the present state_dir job has been running; above 20, saves fail",
		seconds(keeper_busy_ms(control->keeper)));
}

static void put_daemon(FILE *to, const struct control *control, const struct stream_gauges *all)
{
	plain(to, "tokend_uptime_seconds", "gauge", "Time since the daemon was ready",
		seconds(uv_now(control->loop) - control->started_ms));
	plain(to, "tokend_cpu_seconds_total", "counter",
		"CPU time of the daemon, as process_cpu_seconds_total", cpu_seconds());
	plain(to, "tokend_sessions", "gauge", "Sessions attached", control->sessions.n);
	plain(to, "tokend_memory_bytes", "gauge", "Memory of rings and staging buffers",
		(double)control->sessions.memory_bytes);
	plain(to, "tokend_memory_limit_bytes", "gauge",
		"The limit set by memory:", (double)control->config->memory_bytes);
	plain(to, "tokend_lost_wakes_total", "counter", "Wake-ups that did not arrive; must be 0",
		(double)(control->sessions.lost_wakes + all->lost_wakes));
	plain(to, "tokend_sessions_failed_total", "counter",
		"Sessions stopped by an unreadable shard", (double)control->sessions.failures);
	plain(to, "tokend_rereads_total", "counter",
		"Reads of compressed shards that were damaged, and intact when repeated",
		(double)atomic_load(control->rereads));
}

static void put_requests(FILE *to, const struct counts *counts)
{
	static const char *const outcomes[COUNTS_OUTCOMES] = {
		"done", "failed", "refused", "taken_back"};

	header(to, "tokend_requests_total", "counter",
		"Requests of operators that have ended, by kind and outcome");
	for (unsigned kind = 0; kind < COUNTS_KINDS; kind++)
		for (unsigned i = 0; i < COUNTS_OUTCOMES; i++)
			sample(to, "tokend_requests_total", (double)counts->requests[kind][i],
				"kind", counts_kind[kind], "outcome", outcomes[i], NULL);
}

/* ---- streams ---- */

enum family {
	SESSIONS,
	WAITING,
	SLOTS,
	READY,
	LEAST_READY,
	FULL,
	SLOW,
	STORE_WAIT,
	PUBLISHED,
	RELEASED,
	FIRST,
	AGAIN,
	READ_BYTES,
	FAMILIES,
};

static const struct {
	const char *name, *type, *help;
	const char *label, *value; /* after that of the stream; or NULL */
} families[FAMILIES] = {
	[SESSIONS] = {.name = "tokend_stream_sessions",
		.type = "gauge",
		.help = "Sessions attached to the stream"},
	[WAITING] = {.name = "tokend_stream_waiting_sessions",
		.type = "gauge",
		.help = "Sessions whose trainer waits for a batch"},
	[SLOTS] = {.name = "tokend_stream_ring_slots",
		.type = "gauge",
		.help = "Batches for which the rings have room"},
	[READY] = {.name = "tokend_stream_ready_batches",
		.type = "gauge",
		.help = "Batches in the rings that are not released"},
	[LEAST_READY] = {.name = "tokend_stream_least_ready_batches",
		.type = "gauge",
		.help = "The same of the ring that has the fewest; absent without sessions"},
	[FULL] = {.name = "tokend_stream_full_seconds",
		.type = "gauge",
		.help = "How long a ring has been full without a release, at most: the trainer is "
			"slow, or hangs"},
	[SLOW] = {.name = "tokend_stream_slow_seconds",
		.type = "gauge",
		.help = "How long the stream's storage has not answered; 0: it answers"},
	[STORE_WAIT] = {.name = "tokend_stream_store_wait_seconds",
		.type = "gauge",
		.help = "How long a read of the stream has waited for a store, at most"},
	[PUBLISHED] = {.name = "tokend_stream_published_batches_total",
		.type = "counter",
		.help = "Batches written to rings"},
	[RELEASED] = {.name = "tokend_stream_released_batches_total",
		.type = "counter",
		.help = "Batches that trainers have released"},
	[FIRST] = {.name = "tokend_stream_attaches_total",
		.type = "counter",
		.help = "Sessions that began; again: after a lost connection",
		.label = "kind",
		.value = "first"},
	[AGAIN] = {.name = "tokend_stream_attaches_total", .label = "kind", .value = "again"},
	[READ_BYTES] = {.name = "tokend_read_bytes_total",
		.type = "counter",
		.help = "Bytes of tokens read into rings, as they are served"},
};

static double stream_value(const struct control *control, uint32_t stream, enum family family)
{
	const struct stream_counts *c = control->catalog->stream[stream].counts;
	const double value[FAMILIES] = {
		[SESSIONS] = c->now.sessions,
		[WAITING] = c->now.waiting,
		[SLOTS] = (double)c->now.slots,
		[READY] = (double)c->now.ready,
		[LEAST_READY] = (double)c->now.least_ready,
		[FULL] = seconds(c->now.full_ms),
		[SLOW] = hang_of(&control->hangs, &control->catalog->stream[stream])->ticks,
		[STORE_WAIT] = (double)c->now.store_wait_s,
		[PUBLISHED] = (double)(c->published + c->now.published),
		[RELEASED] = (double)(c->released + c->now.released),
		[FIRST] = (double)(c->attaches - c->attaches_again),
		[AGAIN] = (double)c->attaches_again,
		[READ_BYTES] = (double)count_of(&c->read_bytes),
	};

	return value[family];
}

static void put_streams(FILE *to, const struct control *control)
{
	const struct catalog *catalog = control->catalog;

	for (enum family f = 0; f < FAMILIES; f++) {
		if (families[f].type)
			header(to, families[f].name, families[f].type, families[f].help);
		for (uint32_t i = 0; i < catalog->config->streams; i++)
			if (f != LEAST_READY || catalog->stream[i].counts->now.sessions > 0)
				sample(to, families[f].name, stream_value(control, i, f), "stream",
					catalog->stream[i].config->name, families[f].label,
					families[f].value, NULL);
	}
}

static void put_times(FILE *to, const struct catalog *catalog)
{
	header(to, "tokend_trainer_wait_seconds", "histogram",
		"Waits of trainers for a batch, each from about 20 microseconds on");
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		put_histogram(to, "tokend_trainer_wait_seconds", catalog->stream[i].config->name,
			&catalog->stream[i].counts->waits);
	header(to, "tokend_read_seconds", "histogram",
		"Reads of samples, each from its plan to its last byte in the ring");
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		put_histogram(to, "tokend_read_seconds", catalog->stream[i].config->name,
			&catalog->stream[i].counts->reads);
}

static void put_read_errors(FILE *to, const struct catalog *catalog)
{
	static const struct {
		enum fault_code code;
		const char *kind;
	} kinds[] = {{FAULT_IO, "io"}, {FAULT_DATA, "data"}, {FAULT_CHANGED, "changed"},
		{FAULT_TOKEN, "token"}, {FAULT_MEMORY, "memory"},
		{FAULT_DESCRIPTORS, "descriptors"}};

	header(to, "tokend_read_errors_total", "counter",
		"Reads that failed, by kind; errors that may pass are tried three times");
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
			sample(to, "tokend_read_errors_total",
				(double)count_of(
					&catalog->stream[i].counts->read_faults[kinds[k].code]),
				"stream", catalog->stream[i].config->name, "kind", kinds[k].kind,
				NULL);
}

static void put_datasets(FILE *to, const struct catalog *catalog)
{
	char digest[20];

	header(to, "tokend_dataset_samples_total", "counter", "Samples read into rings");
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++)
			sample(to, "tokend_dataset_samples_total",
				(double)count_of(catalog->stream[i].dataset[d].samples), "stream",
				catalog->stream[i].config->name, "dataset",
				catalog->stream[i].dataset[d].config->name, NULL);
	header(to, "tokend_dataset_info", "gauge",
		"Digest of the names and lengths of the dataset's shards");
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++) {
			const struct dataset *dataset = &catalog->stream[i].dataset[d];

			snprintf(digest, sizeof(digest), "%016" PRIx64, dataset->digest);
			sample(to, "tokend_dataset_info", 1, "stream",
				catalog->stream[i].config->name, "dataset", dataset->config->name,
				"digest", digest, NULL);
		}
}

static void put_snapshots(FILE *to, const struct catalog *catalog)
{
	const struct stream_counts *c;
	const char *name;

	header(to, "tokend_snapshots_total", "counter", "Snapshots that trainers requested");
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		c = catalog->stream[i].counts;
		name = catalog->stream[i].config->name;
		sample(to, "tokend_snapshots_total", (double)c->snapshots, "stream", name,
			"outcome", "made", NULL);
		sample(to, "tokend_snapshots_total", (double)c->snapshots_failed, "stream", name,
			"outcome", "failed", NULL);
	}
	header(to, "tokend_snapshot_time_seconds", "gauge",
		"When that happened last, in Unix time; absent: never since the start");
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		c = catalog->stream[i].counts;
		name = catalog->stream[i].config->name;
		if (c->snapshot_s > 0)
			sample(to, "tokend_snapshot_time_seconds", (double)c->snapshot_s, "stream",
				name, "outcome", "made", NULL);
		if (c->snapshot_failed_s > 0)
			sample(to, "tokend_snapshot_time_seconds", (double)c->snapshot_failed_s,
				"stream", name, "outcome", "failed", NULL);
	}
}

/* ---- stores ---- */

enum { CREDENTIALS = 6 };

static double store_value(const struct store_status *s, unsigned which)
{
	switch (which) {
	case 0:
		return (double)s->requests;
	case 1:
		return (double)s->bytes;
	case 2:
		return (double)s->used_bytes;
	case 3:
		return (double)s->retries;
	case 4:
		return s->in_flight;
	case 5:
		return s->limit;
	default:
		return (double)s->expires_s;
	}
}

static void put_first_bytes(FILE *to, const struct store_status *s)
{
	char most[32];
	uint64_t n = 0;

	for (unsigned i = 0; i < STORE_TIMES; i++) {
		n += s->first_byte[i];
		snprintf(most, sizeof(most), "%.9g", (double)(1 << i) / 1000);
		sample(to, "tokend_store_seconds_bucket", (double)n, "store", s->name, "le",
			i + 1 < STORE_TIMES ? most : "+Inf", NULL);
	}
	sample(to, "tokend_store_seconds_sum", s->first_byte_seconds, "store", s->name, NULL);
	sample(to, "tokend_store_seconds_count", (double)n, "store", s->name, NULL);
}

static void put_store_faults(FILE *to, const struct store_status *s)
{
	char code[16];

	for (unsigned i = 0; i < sizeof(s->faults) / sizeof(s->faults[0]); i++) {
		if (s->faults[i] == 0)
			continue;
		snprintf(code, sizeof(code), "%u", i);
		sample(to, "tokend_store_faults_total", (double)s->faults[i], "store", s->name,
			"code", i ? code : "none", NULL);
	}
}

static void put_stores(FILE *to, struct stores *stores)
{
	static const char *const of[][3] = {
		{"tokend_store_requests_total", "counter", "GETs begun, with their repetitions"},
		{"tokend_store_bytes_total", "counter", "Bytes of bodies received"},
		{"tokend_store_used_bytes_total", "counter", "Bytes that reads returned"},
		{"tokend_store_retries_total", "counter", "GETs that were repeated"},
		{"tokend_store_in_flight", "gauge", "GETs that are not answered yet"},
		{"tokend_store_in_flight_limit", "gauge", "The most of them at this moment"},
		{"tokend_store_credentials_seconds", "gauge", "Time until the credentials expire"},
	};
	struct store_status status;

	if (!stores)
		return;
	for (unsigned f = 0; f < sizeof(of) / sizeof(of[0]); f++) {
		header(to, of[f][0], of[f][1], of[f][2]);
		for (unsigned i = 0; store_status(stores, i, &status); i++)
			if (f != CREDENTIALS || status.expires_s != INT64_MAX)
				sample(to, of[f][0], store_value(&status, f), "store", status.name,
					NULL);
	}
	header(to, "tokend_store_faults_total", "counter",
		"Answers that were faults, by HTTP status; none: no answer");
	for (unsigned i = 0; store_status(stores, i, &status); i++)
		put_store_faults(to, &status);
	header(to, "tokend_store_seconds", "histogram", "Time to the first byte of an answer");
	for (unsigned i = 0; store_status(stores, i, &status); i++)
		put_first_bytes(to, &status);
}

/* ---- sessions ---- */

static double session_value(const struct session *s, unsigned which)
{
	struct feed_counters c = feed_counters(s->feed);
	char text[LIMIT_TEXT_BYTES];

	switch (which) {
	case 0:
		return (double)c.published;
	case 1:
		return (double)c.released;
	case 2:
		return (double)(c.published - c.released);
	case 3:
		return s->full_since_ms ? seconds(uv_now(s->control->loop) - s->full_since_ms) : 0;
	case 5:
		return store_report_wait(&s->control->stores, s->id, text, sizeof(text));
	case 4:
		return (double)data_thread_waits(s->control->data_thread, s->id).ns / 1e9;
	default:
		return (double)c.lost_wakes;
	}
}

static void put_sessions(FILE *to, const struct control *control)
{
	static const char *const of[][3] = {
		{"tokend_session_published_batches_total", "counter",
			"Micro-batches written to the session's ring"},
		{"tokend_session_released_batches_total", "counter",
			"Micro-batches that the trainer has released"},
		{"tokend_session_ready_batches", "gauge",
			"Micro-batches in the ring and not released: 0 while the trainer waits"},
		{"tokend_session_full_seconds", "gauge",
			"How long the ring has been full without a release: the trainer is slow, "
			"or hangs"},
		{"tokend_session_waited_seconds_total", "counter",
			"How long the trainer has waited for batches"},
		{"tokend_session_store_wait_seconds", "gauge",
			"How long the session's oldest read has waited for a store"},
		{"tokend_session_lost_wakes_total", "counter",
			"Wake-ups that did not arrive; must be 0"},
	};
	char rank[24], peer[24], session[16];

	for (unsigned f = 0; f < sizeof(of) / sizeof(of[0]); f++) {
		header(to, of[f][0], of[f][1], of[f][2]);
		for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
			const struct session *s = control->sessions.of[id];

			if (!session_is_live(s))
				continue;
			snprintf(rank, sizeof(rank), "%" PRIu64, s->rank);
			snprintf(peer, sizeof(peer), "%" PRIu64, s->peer);
			snprintf(session, sizeof(session), "%" PRIu32, s->id);
			sample(to, of[f][0], session_value(s, f), "stream", s->stream->config->name,
				"run", s->run, "rank", rank, "peer", peer, "session", session,
				NULL);
		}
	}
}

static void put_cache(FILE *to, struct stores *stores)
{
	struct store_cache_status s;

	if (!stores || !store_cache_status(stores, &s))
		return;
	plain(to, "tokend_cache_bytes", "gauge", "Disk blocks of the cache", (double)s.used_bytes);
	plain(to, "tokend_cache_limit_bytes", "gauge", "The limit set by cache.size",
		(double)s.size_bytes);
	plain(to, "tokend_cache_hits_total", "counter", "Pieces that were in the cache when needed",
		(double)s.hits);
	plain(to, "tokend_cache_misses_total", "counter",
		"Pieces that were not in the cache when needed", (double)s.misses);
	plain(to, "tokend_cache_evictions_total", "counter", "Pieces evicted", (double)s.evictions);
	plain(to, "tokend_cache_mismatches_total", "counter",
		"Pieces with a wrong sum, dropped and fetched again", (double)s.mismatches);
	plain(to, "tokend_cache_failing", "gauge",
		"1: the cache's disk fails, and it does not grow", s.failing_s > 0);
}

void metrics_write(struct control *control, FILE *to)
{
	struct stream_gauges all = gauges_update(control);

	put_builds(to, control);
	put_process(to, &control->process);
	put_config(to, control);
	put_daemon(to, control, &all);
	put_state_dir(to, control);
	put_requests(to, &control->counts);
	put_streams(to, control);
	put_times(to, control->catalog);
	put_read_errors(to, control->catalog);
	put_datasets(to, control->catalog);
	put_snapshots(to, control->catalog);
	put_stores(to, control->stores.stores);
	put_cache(to, control->stores.stores);
	if (control->config->metrics_sessions)
		put_sessions(to, control);
}
