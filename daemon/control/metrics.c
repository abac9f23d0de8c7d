#include "daemon/control/metrics.h"

#include "daemon/control/control.h"
#include "proto/version.h"

#include <inttypes.h>
#include <string.h>

static void header(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void plain(FILE *to, const char *name, const char *type, const char *help, double value)
{
	header(to, name, type, help);
	fprintf(to, "%s %.15g\n", name, value);
}

/* A label's value: quotes and backslashes are escaped. Names contain no line ends. */
static void label(FILE *to, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', to);
		fputc(*text, to);
	}
}

static double session_value(const struct session *s, unsigned which, uint64_t now_ms)
{
	struct feed_counters c = feed_counters(s->feed);

	switch (which) {
	case 0:
		return (double)c.published;
	case 1:
		return (double)c.released;
	case 2:
		return (double)(c.published - c.released);
	case 3:
		return s->full_since_ms ? (double)(now_ms - s->full_since_ms) / 1000 : 0;
	default:
		return (double)c.lost_wakes;
	}
}

static void sessions(FILE *to, const struct control *control)
{
	static const char *const families[][3] = {
		{"tokend_session_published_batches_total", "counter",
			"Micro-batches written to the session's ring"},
		{"tokend_session_released_batches_total", "counter",
			"Micro-batches that the trainer has released"},
		{"tokend_session_ready_batches", "gauge",
			"Micro-batches in the ring and not released: 0 while the trainer waits"},
		{"tokend_session_full_seconds", "gauge",
			"How long the ring has been full without a release: the trainer is slow, "
			"or hangs"},
		{"tokend_session_lost_wakes_total", "counter",
			"Wake-ups that did not arrive; must be 0"},
	};
	uint64_t now = uv_now(control->loop);

	for (unsigned f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
		header(to, families[f][0], families[f][1], families[f][2]);
		for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
			const struct session *s = control->sessions.of[id];

			if (!session_is_live(s))
				continue;
			fprintf(to, "%s{stream=\"", families[f][0]);
			label(to, s->stream->config->name);
			fputs("\",run=\"", to);
			label(to, s->run);
			fprintf(to,
				"\",rank=\"%" PRIu64 "\",peer=\"%" PRIu64 "\",session=\"%" PRIu32
				"\"} %.15g\n",
				s->rank, s->peer, s->id, session_value(s, f, now));
		}
	}
}

static void storage(FILE *to, const struct control *control)
{
	const struct catalog *catalog = control->catalog;

	header(to, "tokend_stream_slow_seconds", "gauge",
		"How long the stream's storage has not answered; 0: it answers");
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		fputs("tokend_stream_slow_seconds{stream=\"", to);
		label(to, catalog->config->stream[i].name);
		fprintf(to, "\"} %u\n", control->hangs.of[i].ticks);
	}
}

static unsigned unpinned(const struct control *control)
{
	unsigned n = 0;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		n += session_is_live(s) && feed_counters(s->feed).pinned == RING_UNPINNED;
	}
	return n;
}

void metrics_write(const struct control *control, FILE *to)
{
	uint64_t now = uv_now(control->loop);
	uv_rusage_t usage = {0};

	uv_getrusage(&usage);
	header(to, "tokend_info", "gauge", "Version and I/O backend");
	fprintf(to, "tokend_info{version=\"%s\",io=\"%s\"} 1\n", TOKEND_VERSION,
		reader_name(control->reader));
	plain(to, "tokend_uptime_seconds", "gauge", "Time since the daemon was ready",
		(double)(now - control->started_ms) / 1000);
	plain(to, "tokend_cpu_seconds_total", "counter", "CPU time of the daemon",
		(double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
			((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6);
	plain(to, "tokend_sessions", "gauge", "Sessions attached", control->sessions.n);
	plain(to, "tokend_memory_bytes", "gauge", "Memory of rings and staging buffers",
		(double)control->sessions.memory_bytes);
	plain(to, "tokend_memory_limit_bytes", "gauge",
		"The limit set by memory:", (double)control->config->memory_bytes);
	plain(to, "tokend_lost_wakes_total", "counter", "Wake-ups lost by sessions that have ended",
		(double)control->sessions.lost_wakes);
	plain(to, "tokend_sessions_failed_total", "counter",
		"Sessions stopped by an unreadable shard", (double)control->sessions.failures);
	plain(to, "tokend_rereads_total", "counter",
		"Reads of compressed shards that were damaged, and intact when repeated",
		(double)atomic_load(&control->rereads->total));
	plain(to, "tokend_state_dir_jobs", "gauge",
		"Jobs for state_dir that wait or run: snapshots and mix log entries",
		keeper_jobs(control->keeper));
	plain(to, "tokend_state_dir_busy_seconds", "gauge",
		"How long the present state_dir job has been running; above 20, saves fail",
		(double)keeper_busy_ms(control->keeper) / 1000);
	plain(to, "tokend_unpinned_sessions", "gauge",
		"Sessions whose GPU driver refused to register the ring: their copies are slower",
		unpinned(control));
	storage(to, control);
	sessions(to, control);
}
