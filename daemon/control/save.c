/*
 * Snapshots asked for by a session. The bytes are the trainer's: they are checked against the stream, then
 * stored as they are, in libuv's pool. An error is answered and the session goes on: training does not stop
 * because a disk is full.
 */
#include "log.h"
#include "server.h"
#include "store.h"

#include <stdlib.h>
#include <string.h>

struct save_job {
	uv_work_t work;
	struct connection *connection;
	const struct stream *stream;
	const char *state_dir;
	char run[LIMIT_NAME_BYTES + 1];
	char tag[LIMIT_NAME_BYTES + 1];
	bool ok;
	struct refusal refusal;
	char path[LIMIT_TEXT_BYTES];
	size_t n;
	char bytes[LIMIT_CURSOR_BYTES];
};

static void save_work(uv_work_t *work)
{
	struct save_job *job = work->data;
	struct cursor_why why;
	struct cursor cursor;
	char text[LIMIT_TEXT_BYTES];

	if (!cursor_decode(&cursor, job->bytes, job->n, &why)) {
		refuse(&job->refusal, "checkpoint", why.field, "%s", why.text);
		return;
	}
	job->ok = cursor_belongs(&cursor, &job->stream->begin, &why) ||
		  refuse(&job->refusal, "checkpoint", why.field, "%s", why.text);
	cursor_free(&cursor);
	if (job->ok)
		job->ok = store_save(job->state_dir, job->stream->config->name, job->run, job->tag,
				  job->bytes, job->n, job->path, sizeof(job->path), text, sizeof(text)) ||
			  refuse(&job->refusal, "checkpoint", "state_dir", "%s", text);
}

static void save_done(uv_work_t *work, int status)
{
	struct save_job *job = work->data;
	struct connection *c = job->connection;
	struct wire w = {.op = WIRE_SAVED};

	(void)status;
	c->jobs--;
	if (c->closing) {
		connection_settle(c);
	} else if (!job->ok) {
		log_client(c->uid, LOG_ERROR, "snapshot %s: %s: %s", job->tag, job->refusal.field,
			job->refusal.text);
		connection_error(c, job->refusal.code, job->refusal.field, job->refusal.text);
	} else {
		wire_set_text(&w, WIRE_TAG, job->tag);
		wire_set_text(&w, WIRE_PATH, job->path);
		wire_set(&w, WIRE_DIGEST, order_checksum(job->bytes, job->n));
		connection_send(c, &w, NULL, 0);
	}
	free(job);
}

void save_checkpoint(struct connection *c, const struct wire *w)
{
	struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);
	struct save_job *job;

	if (!c->session || !c->session->fed) {
		connection_refuse(c, "checkpoint", "connection", "attach first");
		return;
	}
	if (c->jobs > 0) {
		connection_refuse(c, "checkpoint", "connection", "wait for the answer to the one before");
		return;
	}
	job = b.n <= LIMIT_CURSOR_BYTES ? calloc(1, sizeof(*job)) : NULL;
	if (!job || !wire_text(w, WIRE_TAG, job->tag, sizeof(job->tag)) || !wire_name_ok(job->tag)) {
		free(job);
		connection_error(
			c, "checkpoint", "tag", "not a name: 1 to 64 bytes without '/' and leading dot");
		return;
	}
	job->connection = c;
	job->stream = c->session->stream;
	job->state_dir = c->server->options->catalog->config->state_dir;
	memcpy(job->run, c->session->run, sizeof(job->run));
	memcpy(job->bytes, b.at, b.n);
	job->n = b.n;
	job->work.data = job;
	c->jobs++;
	uv_queue_work(&c->server->loop, &job->work, save_work, save_done);
}
