/*
 * tokctl metrics: the status as text for Prometheus. Labels are bounded: streams, datasets, stores
 * and the words that the daemon has. Only --sessions adds others.
 */
#include "client/ctl/online/talk.h"

#include <inttypes.h>
#include <string.h>

/* Items of the status, each an object or a list of objects, and the members that are labels. */
#define DAEMON	    "daemon", ""
#define PROCESS	    "process", ""
#define CONFIG_FILE "config", ""
#define STATE_DIR   "state_dir", ""
#define REQUESTS    "requests", "kind"
#define STREAMS	    "streams", "stream"
#define DATASETS    "datasets", "stream dataset"
#define STORES	    "stores", "store"
#define CACHE	    "cache", ""
#define SESSION	    "sessions", "stream run rank peer session"

/*
 * The member is the value, in milliseconds if it has _ms. "member,label": it is an object, and each
 * of its members a value with one more label. "=labels": the value is 1, with these labels. The
 * type follows from the value and from the name.
 */
static const struct metric {
	const char *items, *labels, *member, *name, *help;
} metrics[] = {
	{DAEMON, "=version io", "tokend_info", "Version and I/O backend"},
	{DAEMON, "=version compiler machine", "tokend_build_info", "How the daemon was built"},
	{PROCESS, "cpu_s", "process_cpu_seconds_total", "CPU time, also before reloads"},
	{PROCESS, "resident_bytes", "process_resident_memory_bytes", "With touched rings"},
	{PROCESS, "virtual_bytes", "process_virtual_memory_bytes", "Address space in use"},
	{PROCESS, "descriptors", "process_open_fds", "Open file descriptors"},
	{PROCESS, "descriptors_most", "process_max_fds", "File descriptors that may be open"},
	{PROCESS, "threads", "process_threads", "Threads"},
	{CONFIG_FILE, "load_s", "process_start_time_seconds", "Start or last reload, in Unix time"},
	{CONFIG_FILE, "=digest", "tokend_config_info", "Digest of the config file in use"},
	{CONFIG_FILE, "load_s", "tokend_config_load_time_seconds", "Its load, in Unix time"},
	{CONFIG_FILE, "reload_failed", "tokend_config_reload_failed", "1: an older one is used"},
	{CONFIG_FILE, "reloads,outcome", "tokend_config_reloads_total", "Reloads of the config"},
	{DAEMON, "uptime_ms", "tokend_uptime_seconds", "Time since start or reload"},
	{PROCESS, "cpu_s", "tokend_cpu_seconds_total", "As process_cpu_seconds_total"},
	{DAEMON, "sessions", "tokend_sessions", "Sessions attached"},
	{DAEMON, "memory_bytes", "tokend_memory_bytes", "Memory of rings and staging buffers"},
	{DAEMON, "limit_bytes", "tokend_memory_limit_bytes", "The limit set by memory:"},
	{DAEMON, "failures", "tokend_sessions_failed_total", "Sessions that a bad shard stopped"},
	{DAEMON, "rereads", "tokend_rereads_total", "Damaged reads that were good when repeated"},
	{STATE_DIR, "jobs", "tokend_state_dir_jobs", "Jobs for state_dir that wait or run"},
	{STATE_DIR, "busy_ms", "tokend_state_dir_busy_seconds", "How long the present job runs"},
	{REQUESTS, "ended,outcome", "tokend_requests_total", "Requests of operators that ended"},
	{STREAMS, "sessions", "tokend_stream_sessions", "Sessions attached to the stream"},
	{STREAMS, "waiting", "tokend_stream_waiting_sessions", "Sessions that wait for a batch"},
	{STREAMS, "slots", "tokend_stream_ring_slots", "Batches for which the rings have room"},
	{STREAMS, "ready", "tokend_stream_ready_batches", "Batches in the rings"},
	{STREAMS, "least_ready", "tokend_stream_least_ready_batches",
		"Batches in the least full ring"},
	{STREAMS, "full_ms", "tokend_stream_full_seconds", "Longest time that a ring is full"},
	{STREAMS, "slow_ms", "tokend_stream_slow_seconds", "How long storage does not answer"},
	{STREAMS, "store_wait_ms", "tokend_stream_store_wait_seconds", "Longest wait for a store"},
	{STREAMS, "published", "tokend_stream_published_batches_total", "Batches written to rings"},
	{STREAMS, "released", "tokend_stream_released_batches_total", "Batches released"},
	{STREAMS, "attaches,kind", "tokend_stream_attaches_total", "again: reconnected"},
	{STREAMS, "read_bytes", "tokend_read_bytes_total", "Bytes of tokens read into rings"},
	{STREAMS, "waits", "tokend_trainer_wait_seconds", "Waits for a batch, of 20 us and more"},
	{STREAMS, "reads", "tokend_read_seconds", "Reads of samples, from plan to last byte"},
	{STREAMS, "read_errors,kind", "tokend_read_errors_total", "Reads that failed"},
	{DATASETS, "samples", "tokend_dataset_samples_total", "Samples read into rings"},
	{DATASETS, "=digest", "tokend_dataset_info", "Digest of the names and lengths of shards"},
	{STREAMS, "snapshots,outcome", "tokend_snapshots_total", "Snapshots for trainers"},
	{STREAMS, "snapshot_times,outcome", "tokend_snapshot_time_seconds", "In Unix time"},
	{STORES, "requests", "tokend_store_requests_total", "GETs, with their repetitions"},
	{STORES, "bytes", "tokend_store_bytes_total", "Bytes of bodies received"},
	{STORES, "used_bytes", "tokend_store_used_bytes_total", "Bytes that reads returned"},
	{STORES, "retries", "tokend_store_retries_total", "GETs that were repeated"},
	{STORES, "in_flight", "tokend_store_in_flight", "GETs that are not answered yet"},
	{STORES, "limit", "tokend_store_in_flight_limit", "The most of them at this moment"},
	{STORES, "credentials_s", "tokend_store_credentials_seconds", "Until credentials expire"},
	{STORES, "faults,code", "tokend_store_faults_total", "By HTTP status; none: no answer"},
	{STORES, "first_byte", "tokend_store_seconds", "Time to the first byte of an answer"},
	{CACHE, "used_bytes", "tokend_cache_bytes", "Disk blocks of the cache"},
	{CACHE, "size_bytes", "tokend_cache_limit_bytes", "The limit set by cache.size"},
	{CACHE, "hits", "tokend_cache_hits_total", "Pieces found in the cache"},
	{CACHE, "misses", "tokend_cache_misses_total", "Pieces not found in the cache"},
	{CACHE, "evictions", "tokend_cache_evictions_total", "Pieces evicted"},
	{CACHE, "mismatches", "tokend_cache_mismatches_total", "Damaged pieces"},
	{CACHE, "failing", "tokend_cache_failing", "1: its disk fails, and it does not grow"},
	{SESSION, "published", "tokend_session_published_batches_total", "Batches written"},
	{SESSION, "released", "tokend_session_released_batches_total", "Batches released"},
	{SESSION, "ready", "tokend_session_ready_batches", "0: the trainer waits"},
	{SESSION, "full_ms", "tokend_session_full_seconds", "Time that its ring is full"},
	{SESSION, "waited_ms", "tokend_session_waited_seconds_total", "Waits of its trainer"},
	{SESSION, "store_wait_ms", "tokend_session_store_wait_seconds", "Wait for a store"},
};

/* Puts a label after *@before. Its value is one line; quotes and backslashes are escaped. */
static void put_label(FILE *to, const char **before, const char *name, const char *value)
{
	char line[LIMIT_TEXT_BYTES];

	snprintf(line, sizeof(line), "%s", value);
	fprintf(to, "%s%s=\"", *before, name);
	for (const char *c = fault_line(line); *c; c++)
		fprintf(to, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
	fputc('"', to);
	*before = ",";
}

/* Puts the members of @item whose names are the words of @names. */
static void put_labels(FILE *to, const char **before, const char *names, const json_t *item)
{
	char name[16], number[24];

	for (size_t n; (n = strcspn(names, " ")) > 0; names += n + (names[n] == ' ')) {
		snprintf(name, sizeof(name), "%.*s", (int)n, names);
		snprintf(number, sizeof(number), "%" PRIu64, status_number(item, name));
		put_label(to, before, name,
			json_is_integer(json_object_get(item, name)) ? number
								     : status_text(item, name));
	}
}

/* A line of the metric @m and @suffix, about @item. @part: the value of one more label, or NULL. */
static void put_line(FILE *to, const struct metric *m, const char *suffix, const json_t *item,
	const char *label, const char *part, double value)
{
	const char *before = "{";

	fprintf(to, "%s%s", m->name, suffix);
	put_labels(to, &before, m->labels, item);
	if (m->member[0] == '=')
		put_labels(to, &before, m->member + 1, item);
	if (part)
		put_label(to, &before, label, part);
	fprintf(to, "%s %.15g\n", *before == ',' ? "}" : "", value);
}

/* Of an integer without a sign, for counters. */
static double value_of(const json_t *value)
{
	return json_is_integer(value) ? (double)(uint64_t)json_integer_value(value)
				      : json_number_value(value);
}

static void put_item(FILE *to, const struct metric *m, const json_t *item, const json_t *value)
{
	const char *name, *label = strchr(m->member, ',');
	json_t *le = json_object_get(value, "le"), *part;

	json_object_foreach(le, name, part)
		put_line(to, m, "_bucket", item, "le", name, value_of(part));
	if (le) {
		put_line(to, m, "_sum", item, NULL, NULL, value_of(json_object_get(value, "sum")));
		put_line(to, m, "_count", item, NULL, NULL, value_of(json_object_get(le, "+Inf")));
	} else if (label) {
		json_object_foreach((json_t *)value, name, part)
			put_line(to, m, "", item, label + 1, name, value_of(part));
	} else if (m->member[0] == '=') {
		put_line(to, m, "", item, NULL, NULL, 1);
	} else if (json_is_number(value)) {
		put_line(to, m, "", item, NULL, NULL,
			value_of(value) / (strstr(m->member, "_ms") ? 1000 : 1));
	}
}

static void put_metric(FILE *to, const struct metric *m, const json_t *items)
{
	size_t n = json_is_object(items) ? 1 : json_array_size(items);
	char member[32];

	snprintf(member, sizeof(member), "%.*s", (int)strcspn(m->member, ","), m->member);
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_is_object(items) ? items : json_array_get(items, i),
			     *value = json_object_get(item, member);

		if (i == 0)
			fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name,
				json_object_get(value, "le") ? "histogram"
				: strstr(m->name, "_total")  ? "counter"
							     : "gauge");
		put_item(to, m, item, value);
	}
}

void metrics_write(FILE *to, const json_t *status, bool sessions)
{
	fprintf(to,
		"# HELP tokend_up 1: the daemon answers\n# TYPE tokend_up gauge\ntokend_up %d\n",
		status != NULL);
	for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
		if (sessions || strcmp(metrics[i].items, "sessions") != 0)
			put_metric(to, &metrics[i], json_object_get(status, metrics[i].items));
}

static const struct ctl_option options[] = {
	{CTL_SOCKET_OPTION},
	{CTL_CONFIG_OPTION},
	{OPTION_FLAG("sessions", "with series for each session, with its run and rank")},
};

static int run(const struct ctl_arguments *a)
{
	struct ctl_link link = {0};
	json_t *status = ctl_status_of(&link, a, true);

	if (!status)
		return CTL_FAILED;
	metrics_write(stdout, status, ctl_given(a, "sessions"));
	json_decref(status);
	return fflush(stdout) == 0 && !ferror(stdout) ? CTL_OK
						      : ctl_fail("stdout: cannot write metrics");
}

const struct ctl_command ctl_metrics = {
	.name = "metrics",
	.help = "print what a running daemon counts, as text for Prometheus",
	OPTIONS_ARE(options),
	.run = run,
};
