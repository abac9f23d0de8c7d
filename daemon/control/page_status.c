/* status.json: jansson builds it, and nothing of it outlives the answer. */
#include "daemon/control/control.h"
#include "daemon/control/counts.h"
#include "daemon/control/gauges.h"
#include "daemon/control/log.h"
#include "daemon/control/page.h"
#include "daemon/control/status.h"
#include "proto/status_members.h"
#include "proto/text.h"
#include "proto/version.h"

#include <jansson.h>
#include <string.h>

/* The most that a page lists: streams, datasets of one, sessions, runs, datasets of a mix. */
enum { STREAMS = 64, DATASETS = 32, SESSIONS = 256, RUNS = 32, MIXED = 32 };

/* ---- texts ---- */

/* Shortens the path that begins at *@from: moves it to the last part. */
static void skip_directories(const char **from, const char *end)
{
	for (const char *at = *from; at < end; at++)
		if (*at == '/' && at + 1 < end)
			*from = at + 1;
}

/* Replaces bytes that are not UTF-8, and in every word the directories before a file's name. */
static json_t *public_text(const char *text)
{
	char clean[LIMIT_TEXT_BYTES + 8];
	size_t n = 0;

	while (*text && n + 8 < sizeof(clean)) {
		const char *end = text + strcspn(text, " ");

		skip_directories(&text, end);
		for (; text < end && n + 8 < sizeof(clean); text++) {
			unsigned bytes = text_character(text);

			if (bytes == 0)
				clean[n++] = '?';
			for (unsigned i = 0; i < bytes; i++)
				clean[n++] = text[i];
			text += bytes > 1 ? bytes - 1 : 0;
		}
		if (*text == ' ')
			clean[n++] = *text++;
	}
	return json_stringn(clean, n);
}

/* ---- sessions ---- */

static bool is_public(enum wire_key key)
{
	return key != WIRE_PID;
}

static json_t *members(const struct wire *w, const struct status_member *member)
{
	json_t *object = json_object();

	for (; member->name; member++)
		if (is_public(member->key))
			json_object_set_new(object, member->name,
				json_integer((json_int_t)wire_number(w, member->key)));
	return object;
}

static void set_slow(json_t *object, const struct wire *w)
{
	char shard[LIMIT_TEXT_BYTES + 1];

	if (!wire_has(w, WIRE_SLOW_MS))
		return;
	json_object_set_new(
		object, "slow_ms", json_integer((json_int_t)wire_number(w, WIRE_SLOW_MS)));
	if (wire_text(w, WIRE_SLOW_SHARD, shard, sizeof(shard)))
		json_object_set_new(object, "slow_shard", public_text(shard));
}

static json_t *put_session(const struct session *s, uint64_t now_ms)
{
	struct wire w = {.op = WIRE_SESSION};
	struct status_texts texts;

	status_session(s, now_ms, &w, &texts);

	json_t *object = members(&w, status_session_members);

	json_object_set_new(object, "stream", json_string(s->stream->config->name));
	json_object_set_new(object, "run", json_string(s->run));
	json_object_set_new(
		object, "seq_len", json_integer((json_int_t)s->stream->config->seq_len));
	set_slow(object, &w);
	if (wire_has(&w, WIRE_STORE_WAIT_MS)) {
		json_object_set_new(object, "store_wait_ms",
			json_integer((json_int_t)wire_number(&w, WIRE_STORE_WAIT_MS)));
		json_object_set_new(object, "store_wait", json_string(texts.wait));
	}
	return object;
}

static json_t *put_sessions(const struct control *control)
{
	json_t *list = json_array();

	for (uint32_t id = 0; id < LIMIT_SESSIONS && json_array_size(list) < SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		if (session_is_live(s))
			json_array_append_new(list, put_session(s, uv_now(control->loop)));
	}
	return list;
}

/* ---- mixes ---- */

static json_t *put_mix(const struct cursor *cursor, const struct order_segment *segment)
{
	json_t *mix = json_object(), *object = json_object();

	for (uint32_t d = 0; d < segment->datasets && json_object_size(mix) < MIXED; d++)
		if (segment->units[d] > 0)
			json_object_set_new(mix, cursor->dataset[d].name,
				json_real((double)segment->units[d] / (double)ORDER_UNITS));
	json_object_set_new(object, "from", json_integer((json_int_t)segment->start));
	json_object_set_new(object, "mix", mix);
	return object;
}

/* The mix at @position, and the next one. */
static json_t *put_mixes(const struct cursor *cursor, uint64_t position)
{
	uint32_t at = 0;
	json_t *list = json_array();

	while (at + 1 < cursor->segments && cursor->segment[at + 1]->start <= position)
		at++;
	for (uint32_t i = at; i < cursor->segments && i < at + 2; i++)
		json_array_append_new(list, put_mix(cursor, cursor->segment[i]));
	return list;
}

static bool is_listed(json_t *list, const struct session *s)
{
	size_t i;
	json_t *run;

	json_array_foreach(list, i,
		run) if (strcmp(json_string_value(json_object_get(run, "run")), s->run) == 0 &&
			 strcmp(json_string_value(json_object_get(run, "stream")),
				 s->stream->config->name) == 0) return true;
	return false;
}

/* The runs, each by its first session: all have one mix. */
static json_t *put_runs(const struct control *control)
{
	json_t *list = json_array();

	for (uint32_t id = 0; id < LIMIT_SESSIONS && json_array_size(list) < RUNS; id++) {
		const struct session *s = control->sessions.of[id];

		if (!session_is_live(s) || is_listed(list, s))
			continue;

		uint64_t taken = feed_counters(s->feed).released * s->world * s->micro_batch;

		json_array_append_new(list,
			json_pack("{s:s, s:s, s:o}", "stream", s->stream->config->name, "run",
				s->run, "mixes", put_mixes(feed_cursor(s->feed), s->next + taken)));
	}
	return list;
}

/* ---- streams ---- */

static json_t *put_datasets(const struct stream *stream)
{
	json_t *list = json_array();

	for (uint32_t d = 0; d < stream->config->datasets && d < DATASETS; d++)
		json_array_append_new(
			list, json_pack("{s:s, s:I}", "dataset", stream->dataset[d].config->name,
				      "samples", (json_int_t)count_of(stream->dataset[d].samples)));
	return list;
}

static json_t *put_stream(const struct stream *stream)
{
	const struct stream_counts *c = stream->counts;
	uint64_t waits = 0;

	for (unsigned i = 0; i <= COUNTS_BUCKETS; i++)
		waits += count_of(&c->waits.bucket[i]);
	return json_pack("{s:s, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o}", "stream",
		stream->config->name, "seq_len", (json_int_t)stream->config->seq_len, "sessions",
		(int)c->now.sessions, "waiting", (int)c->now.waiting, "slots",
		(json_int_t)c->now.slots, "ready", (json_int_t)c->now.ready, "waits",
		(json_int_t)waits, "waited_ms", (json_int_t)(count_of(&c->waits.sum_ns) / 1000000),
		"read_bytes", (json_int_t)count_of(&c->read_bytes), "datasets",
		put_datasets(stream));
}

static json_t *put_streams(struct control *control)
{
	json_t *list = json_array();

	gauges_update(control);
	for (uint32_t i = 0; i < control->config->streams && i < STREAMS; i++)
		json_array_append_new(list, put_stream(&control->catalog->stream[i]));
	return list;
}

/* ---- the daemon ---- */

static json_t *put_daemon(const struct control *control)
{
	struct wire w = {.op = WIRE_STATUS};
	struct status_texts texts;

	status_daemon(control, &w, &texts);

	json_t *object = members(&w, status_daemon_members);

	json_object_set_new(object, "version", json_string(TOKEND_VERSION));
	json_object_set_new(object, "io", json_string(reader_name(control->reader)));
	set_slow(object, &w);
	return object;
}

static json_t *put_faults(void)
{
	struct log_fault fault[LOG_FAULTS];
	unsigned n = log_faults(fault);
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(
			list, json_pack("{s:I, s:s, s:o}", "time", (json_int_t)fault[i].at, "level",
				      fault[i].level == LOG_ERROR ? "error" : "warning", "text",
				      public_text(fault[i].text)));
	return list;
}

static json_t *put_cache(const struct control *control)
{
	json_t *cache = store_report_cache(&control->stores);

	if (json_is_object(cache))
		json_object_set_new(cache, "dir",
			public_text(json_string_value(json_object_get(cache, "dir"))));
	return cache;
}

unsigned page_status(void *context, FILE *to)
{
	struct control *control = context;
	json_t *all = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "daemon",
		put_daemon(control), "streams", put_streams(control), "runs", put_runs(control),
		"sessions", put_sessions(control), "faults", put_faults(), "stores",
		store_report(&control->stores, uv_now(control->loop)), "cache", put_cache(control));
	bool written = all && json_dumpf(all, to, JSON_COMPACT | JSON_REAL_PRECISION(6)) == 0;

	json_decref(all);
	return written ? 200 : 503;
}
