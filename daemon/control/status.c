#include "daemon/control/status.h"

#include "daemon/control/control.h"
#include "proto/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS_PAGE = 32 }; /* sessions per reply; their packets must fit the socket's buffer */

static void put_store_wait(const struct session *s, struct wire *w, struct status_texts *texts)
{
	unsigned wait_s =
		store_report_wait(&s->control->stores, s->id, texts->wait, sizeof(texts->wait));

	if (wait_s == 0)
		return;
	wire_set(w, WIRE_STORE_WAIT_MS, wait_s * UINT64_C(1000));
	wire_set_text(w, WIRE_TEXT, texts->wait);
}

void status_session(
	const struct session *s, uint64_t now_ms, struct wire *w, struct status_texts *texts)
{
	struct feed_counters counters = feed_counters(s->feed);
	uint64_t position = s->next + counters.released * s->world * s->micro_batch,
		 end = cursor_end(feed_cursor(s->feed)); /* the last batch may have padding */
	struct data_thread_waits waits = data_thread_waits(s->control->data_thread, s->id);

	wire_set(w, WIRE_ID, s->id);
	wire_set_text(w, WIRE_STREAM, s->stream->config->name);
	wire_set_text(w, WIRE_RUN, s->run);
	wire_set_text(w, WIRE_HOST, s->connection->host);
	wire_set(w, WIRE_RANK, s->rank);
	wire_set(w, WIRE_WORLD, s->world);
	wire_set(w, WIRE_MICRO, s->micro_batch);
	wire_set(w, WIRE_PEER, s->peer);
	wire_set(w, WIRE_SLOTS, s->slots);
	wire_set(w, WIRE_PID, (uint64_t)s->connection->pid);
	wire_set(w, WIRE_PUBLISHED, counters.published);
	wire_set(w, WIRE_RELEASED, counters.released);
	wire_set(w, WIRE_LOST_WAKES, counters.lost_wakes);
	wire_set(w, WIRE_POSITION, position < end ? position : end);
	wire_set(w, WIRE_STALL_MS, s->full_since_ms ? now_ms - s->full_since_ms : 0);
	wire_set(w, WIRE_WAITS, waits.times);
	wire_set(w, WIRE_WAITED_MS, waits.ns / 1000000);
	wire_set(w, WIRE_WAITING, counters.waits);
	wire_set(w, WIRE_MEMORY_BYTES, s->bytes);
	wire_set(w, WIRE_SEQ_LEN, s->stream->config->seq_len);
	wire_set(w, WIRE_REQUEST_KEY, request_number(s));
	if (s->memory.node != RING_MEMORY_ANYWHERE)
		wire_set(w, WIRE_NODE, s->memory.node);
	hang_put(hang_of(&s->control->hangs, s->stream), w, texts->shard, sizeof(texts->shard));
	put_store_wait(s, w, texts);
}

/* The config's absolute path: a relative one is only valid in this process's directory. */
static void name_config(const struct config *config, char *path, size_t path_bytes)
{
	const char *slash = strrchr(config->path, '/');

	snprintf(path, path_bytes, "%s/%s",
		strcmp(config->directory, "/") == 0 ? "" : config->directory,
		slash ? slash + 1 : config->path);
}

void status_daemon(const struct control *control, struct wire *w, struct status_texts *texts)
{
	const struct sessions *sessions = &control->sessions;
	const struct stream *slow = hang_longest(&control->hangs);

	wire_set(w, WIRE_SESSIONS, sessions->n);
	wire_set(w, WIRE_MEMORY_BYTES, sessions->memory_bytes);
	wire_set(w, WIRE_LIMIT_BYTES, control->config->memory_bytes);
	wire_set(w, WIRE_UPTIME_MS, uv_now(control->loop) - control->started_ms);
	wire_set(w, WIRE_LOST_WAKES, sessions->lost_wakes);
	wire_set(w, WIRE_PID, (uint64_t)uv_os_getpid());
	wire_set_text(w, WIRE_IO, reader_name(control->reader));
	if (slow) {
		wire_set_text(w, WIRE_STREAM, slow->config->name);
		hang_put(hang_of(&control->hangs, slow), w, texts->shard, sizeof(texts->shard));
	}
}

void status_list(struct connection *c, const struct wire *w)
{
	const struct control *control = c->control;
	uint64_t serial = wire_number(w, WIRE_SERIAL), id = wire_number(w, WIRE_AFTER);
	unsigned listed = 0;
	struct wire total = {.op = WIRE_STATUS};
	char path[LIMIT_TEXT_BYTES], *stores = NULL;
	struct status_texts texts;

	for (; id < LIMIT_SESSIONS && listed < STATUS_PAGE; id++) {
		const struct session *s = control->sessions.of[id];
		struct wire one = {.op = WIRE_SESSION};

		if (!session_is_live(s))
			continue;
		status_session(s, connection_now(c), &one, &texts);
		connection_send(c, serial, &one);
		listed++;
	}
	status_daemon(control, &total, &texts);
	wire_set_text(&total, WIRE_RELEASE, TOKEND_VERSION);
	wire_set(&total, WIRE_DIGEST, control->config->digest);
	wire_set(&total, WIRE_AFTER, id < LIMIT_SESSIONS ? id : 0);
	name_config(control->config, path, sizeof(path));
	wire_set_text(&total, WIRE_PATH, path);
	if (id == LIMIT_SESSIONS)
		stores = store_report_text(&control->stores, connection_now(c));
	if (stores)
		wire_set_text(&total, WIRE_ARGS, stores);
	connection_send(c, serial, &total);
	free(stores);
}

void status_streams(struct connection *c, const struct wire *w)
{
	const struct catalog *catalog = c->control->catalog;
	uint64_t serial = wire_number(w, WIRE_SERIAL), after = wire_number(w, WIRE_AFTER), n = 0;
	struct wire last = {.op = WIRE_STREAMS};

	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *stream = &catalog->stream[i];

		for (uint32_t d = 0; d < stream->config->datasets; d++, n++) {
			struct wire dataset = {.op = WIRE_DATASET_OP};

			if (n < after || n >= after + STATUS_PAGE)
				continue;
			wire_set_text(&dataset, WIRE_STREAM, stream->config->name);
			wire_set_text(&dataset, WIRE_DATASET, stream->config->dataset[d].name);
			wire_set(&dataset, WIRE_DIGEST, stream->dataset[d].digest);
			connection_send(c, serial, &dataset);
		}
	}
	wire_set(&last, WIRE_AFTER, n > after + STATUS_PAGE ? after + STATUS_PAGE : 0);
	connection_send(c, serial, &last);
}
