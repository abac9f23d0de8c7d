/*
 * tokctl metrics: the status as text for Prometheus. Labels are bounded: streams, datasets, stores
 * and the words that the daemon has. Only --sessions adds others.
 */
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "client/ctl/web/web.h"
#include "proto/phrases.h"

#include <stdlib.h>
#include <string.h>

#define STREAM	"stream"
#define DATASET "stream dataset"
#define STORE	"store"
#define SESSION "stream run rank peer session"

static const struct metric {
	const char *items;  /* of the status: an object, or a list of objects */
	const char *labels; /* members that are labels; after '|' that of the value's parts */
	const char *member; /* the value, in milliseconds if it ends in _ms; NULL: 1 */
	const char *name, *type, *help;
} metrics[] = {
	{"daemon", "version io", NULL, "tokend_info", "gauge", "Version and I/O backend"},
	{"daemon", "version compiler machine", NULL, "tokend_build_info", "gauge",
		"How the daemon was built, and for which machine"},
	{"process", "", "cpu_s", "process_cpu_seconds_total", "counter", "CPU time of the daemon"},
	{"process", "", "resident_bytes", "process_resident_memory_bytes", "gauge",
		"Resident memory, with touched rings"},
	{"process", "", "virtual_bytes", "process_virtual_memory_bytes", "gauge",
		"Address space in use"},
	{"process", "", "descriptors", "process_open_fds", "gauge", "Open file descriptors"},
	{"process", "", "descriptors_most", "process_max_fds", "gauge",
		"The most file descriptors that may be open"},
	{"process", "", "threads", "process_threads", "gauge", "Threads"},
	{"config", "", "load_s", "process_start_time_seconds", "gauge",
		"When the daemon began, in Unix time"},
	{"config", "digest", NULL, "tokend_config_info", "gauge",
		"Digest of the config file that is in use"},
	{"config", "", "load_s", "tokend_config_load_time_seconds", "gauge",
		"When the config in use was loaded, in Unix time"},
	{"config", "", "reload_failed", "tokend_config_reload_failed", "gauge",
		"1: the last reload was refused, and an older config is in use"},
	{"config", "|outcome", "reloads", "tokend_config_reloads_total", "counter",
		"Reloads of the config"},
	{"daemon", "", "uptime_ms", "tokend_uptime_seconds", "gauge",
		"Time since the daemon was ready"},
	{"process", "", "cpu_s", "tokend_cpu_seconds_total", "counter",
		"CPU time of the daemon, as process_cpu_seconds_total"},
	{"daemon", "", "sessions", "tokend_sessions", "gauge", "Sessions attached"},
	{"daemon", "", "memory_bytes", "tokend_memory_bytes", "gauge",
		"Memory of rings and staging buffers"},
	{"daemon", "", "limit_bytes", "tokend_memory_limit_bytes", "gauge",
		"The limit set by memory:"},
	{"daemon", "", "failures", "tokend_sessions_failed_total", "counter",
		"Sessions stopped by an unreadable shard"},
	{"daemon", "", "rereads", "tokend_rereads_total", "counter",
		"Reads of compressed shards that were damaged, and intact when repeated"},
	{"state_dir", "", "jobs", "tokend_state_dir_jobs", "gauge",
		"Jobs for state_dir that wait or run"},
	{"state_dir", "", "busy_ms", "tokend_state_dir_busy_seconds", "gauge",
		"How long the present state_dir job has been running; above 20, saves fail"},
	{"requests", "kind|outcome", "ended", "tokend_requests_total", "counter",
		"Requests of operators that have ended, by kind and outcome"},
	{"streams", STREAM, "sessions", "tokend_stream_sessions", "gauge",
		"Sessions attached to the stream"},
	{"streams", STREAM, "waiting", "tokend_stream_waiting_sessions", "gauge",
		"Sessions whose trainer waits for a batch"},
	{"streams", STREAM, "slots", "tokend_stream_ring_slots", "gauge",
		"Batches for which the rings have room"},
	{"streams", STREAM, "ready", "tokend_stream_ready_batches", "gauge",
		"Batches in the rings that are not released"},
	{"streams", STREAM, "least_ready", "tokend_stream_least_ready_batches", "gauge",
		"The same of the ring that has the fewest; absent without sessions"},
	{"streams", STREAM, "full_ms", "tokend_stream_full_seconds", "gauge",
		"How long a ring has been full without a release, at most: the trainer is slow, or "
		"hangs"},
	{"streams", STREAM, "slow_ms", "tokend_stream_slow_seconds", "gauge",
		"How long the stream's storage has not answered; 0: it answers"},
	{"streams", STREAM, "store_wait_ms", "tokend_stream_store_wait_seconds", "gauge",
		"How long a read of the stream has waited for a store, at most"},
	{"streams", STREAM, "published", "tokend_stream_published_batches_total", "counter",
		"Batches written to rings"},
	{"streams", STREAM, "released", "tokend_stream_released_batches_total", "counter",
		"Batches that trainers have released"},
	{"streams", STREAM "|kind", "attaches", "tokend_stream_attaches_total", "counter",
		"Sessions that began; again: after a lost connection"},
	{"streams", STREAM, "read_bytes", "tokend_read_bytes_total", "counter",
		"Bytes of tokens read into rings, as they are served"},
	{"streams", STREAM, "waits", "tokend_trainer_wait_seconds", "histogram",
		"Waits of trainers for a batch, each from about 20 microseconds on"},
	{"streams", STREAM, "reads", "tokend_read_seconds", "histogram",
		"Reads of samples, each from its plan to its last byte in the ring"},
	{"streams", STREAM "|kind", "read_errors", "tokend_read_errors_total", "counter",
		"Reads that failed, by kind; errors that may pass are tried three times"},
	{"datasets", DATASET, "samples", "tokend_dataset_samples_total", "counter",
		"Samples read into rings"},
	{"datasets", DATASET " digest", NULL, "tokend_dataset_info", "gauge",
		"Digest of the names and lengths of the dataset's shards"},
	{"streams", STREAM "|outcome", "snapshots", "tokend_snapshots_total", "counter",
		"Snapshots that trainers requested"},
	{"streams", STREAM "|outcome", "snapshot_times", "tokend_snapshot_time_seconds", "gauge",
		"When that happened last, in Unix time; absent: never since the start"},
	{"stores", STORE, "requests", "tokend_store_requests_total", "counter",
		"GETs begun, with their repetitions"},
	{"stores", STORE, "bytes", "tokend_store_bytes_total", "counter",
		"Bytes of bodies received"},
	{"stores", STORE, "used_bytes", "tokend_store_used_bytes_total", "counter",
		"Bytes that reads returned"},
	{"stores", STORE, "retries", "tokend_store_retries_total", "counter",
		"GETs that were repeated"},
	{"stores", STORE, "in_flight", "tokend_store_in_flight", "gauge",
		"GETs that are not answered yet"},
	{"stores", STORE, "limit", "tokend_store_in_flight_limit", "gauge",
		"The most of them at this moment"},
	{"stores", STORE, "credentials_s", "tokend_store_credentials_seconds", "gauge",
		"Time until the credentials expire"},
	{"stores", STORE "|code", "faults", "tokend_store_faults_total", "counter",
		"Answers that were faults, by HTTP status; none: no answer"},
	{"stores", STORE, "first_byte", "tokend_store_seconds", "histogram",
		"Time to the first byte of an answer"},
	{"cache", "", "used_bytes", "tokend_cache_bytes", "gauge", "Disk blocks of the cache"},
	{"cache", "", "size_bytes", "tokend_cache_limit_bytes", "gauge",
		"The limit set by cache.size"},
	{"cache", "", "hits", "tokend_cache_hits_total", "counter",
		"Pieces that were in the cache when needed"},
	{"cache", "", "misses", "tokend_cache_misses_total", "counter",
		"Pieces that were not in the cache when needed"},
	{"cache", "", "evictions", "tokend_cache_evictions_total", "counter", "Pieces evicted"},
	{"cache", "", "mismatches", "tokend_cache_mismatches_total", "counter",
		"Pieces with a wrong sum, dropped and fetched again"},
	{"cache", "", "failing", "tokend_cache_failing", "gauge",
		"1: the cache's disk fails, and it does not grow"},
	{"sessions", SESSION, "published", "tokend_session_published_batches_total", "counter",
		"Micro-batches written to the session's ring"},
	{"sessions", SESSION, "released", "tokend_session_released_batches_total", "counter",
		"Micro-batches that the trainer has released"},
	{"sessions", SESSION, "ready", "tokend_session_ready_batches", "gauge",
		"Micro-batches in the ring and not released: 0 while the trainer waits"},
	{"sessions", SESSION, "full_ms", "tokend_session_full_seconds", "gauge",
		"How long the ring has been full without a release: the trainer is slow, or hangs"},
	{"sessions", SESSION, "waited_ms", "tokend_session_waited_seconds_total", "counter",
		"How long the trainer has waited for batches"},
	{"sessions", SESSION, "store_wait_ms", "tokend_session_store_wait_seconds", "gauge",
		"How long the session's oldest read has waited for a store"},
};

/* Puts @before and a label. Quotes and backslashes of its value are escaped. */
static void put_label(FILE *to, const char *before, const char *name, const char *value)
{
	fprintf(to, "%s%s=\"", before, name);
	for (; *value; value++) {
		if (*value == '"' || *value == '\\')
			fputc('\\', to);
		fputc(*value, to);
	}
	fputc('"', to);
}

/* A line of the metric @m and @suffix, about @item. @part: the value of one more label, or NULL. */
static void put_line(FILE *to, const struct metric *m, const char *suffix, const json_t *item,
	const char *label, const char *part, double value)
{
	const char *before = "{", *at = m->labels;
	char number[24], name[16];

	fprintf(to, "%s%s", m->name, suffix);
	for (size_t n; (n = strcspn(at, " |")) > 0; at += n + (at[n] == ' '), before = ",") {
		snprintf(name, sizeof(name), "%.*s", (int)n, at);
		snprintf(number, sizeof(number), "%llu",
			(unsigned long long)status_number(item, name));
		put_label(to, before, name,
			json_is_integer(json_object_get(item, name)) ? number
								     : status_text(item, name));
	}
	if (part) {
		put_label(to, before, label, part);
		before = ",";
	}
	fprintf(to, "%s %.15g\n", *before == ',' ? "}" : "", value);
}

/* Of an integer without a sign, for counters. */
static double value_of(const json_t *value)
{
	return json_is_integer(value) ? (double)(uint64_t)json_integer_value(value)
				      : json_number_value(value);
}

static void put_item(FILE *to, const struct metric *m, const json_t *item)
{
	json_t *value = m->member ? json_object_get(item, m->member) : NULL, *part;
	json_t *le = json_object_get(value, "le"); /* a histogram */
	const char *name, *parts = strchr(m->labels, '|');
	bool ms = m->member && strlen(m->member) > 3 &&
		  strcmp(m->member + strlen(m->member) - 3, "_ms") == 0;

	json_object_foreach(le ? le : value, name, part) put_line(
		to, m, le ? "_bucket" : "", item, le ? "le" : parts + 1, name, value_of(part));
	if (le) {
		put_line(to, m, "_sum", item, NULL, NULL, value_of(json_object_get(value, "sum")));
		put_line(to, m, "_count", item, NULL, NULL, value_of(json_object_get(le, "+Inf")));
	} else if (!m->member) {
		put_line(to, m, "", item, NULL, NULL, 1);
	} else if (json_is_number(value)) {
		put_line(to, m, "", item, NULL, NULL, value_of(value) / (ms ? 1000 : 1));
	}
}

void metrics_write(FILE *to, const json_t *status, bool sessions)
{
	fprintf(to,
		"# HELP tokend_up 1: the daemon answers\n# TYPE tokend_up gauge\ntokend_up %d\n",
		status != NULL);
	for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]) && status; i++) {
		const struct metric *m = &metrics[i];
		json_t *items = json_object_get(status, m->items), *item;
		size_t n;

		if (!json_is_object(items) && json_array_size(items) == 0)
			continue;
		if (strcmp(m->items, "sessions") == 0 && !sessions)
			continue;
		fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type);
		if (json_is_object(items))
			put_item(to, m, items);
		json_array_foreach(items, n, item) put_item(to, m, item);
	}
}

enum { SOCKET, CONFIG, SESSIONS };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[SESSIONS] = {.name = "sessions",
		.kind = CTL_FLAG,
		.help = "with series for each session, with its run and rank"},
};

static int run(const struct ctl_arguments *a)
{
	struct ctl_link *l = calloc(1, sizeof(*l));
	json_t *status = NULL;

	if (!l)
		return ctl_fail(PHRASE_MEMORY);
	if (ctl_connect(l, ctl_text(a, SOCKET), ctl_text(a, CONFIG))) {
		status = ctl_ask_status(l, true, NULL, NULL);
		ctl_disconnect(l);
	}
	free(l);
	if (!status)
		return CTL_FAILED;
	metrics_write(stdout, status, ctl_given(a, SESSIONS));
	json_decref(status);
	return fflush(stdout) == 0 && !ferror(stdout) ? CTL_OK
						      : ctl_fail("stdout: cannot write metrics");
}

const struct ctl_command ctl_metrics = {
	.name = "metrics",
	.help = "print what a running daemon counts, as text for Prometheus",
	.about = "tokctl serve serves the same text at /metrics. Names of metrics do not change. "
		 "With --sessions, the number of series grows with every job.",
	.examples = CTL_EXAMPLES({"how many trainers wait for a batch",
		"tokctl metrics -c tokend.yaml | grep ^tokend_stream_waiting_sessions"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = run,
};
