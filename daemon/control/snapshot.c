/*
 * Snapshots asked for by a session. The bytes are the trainer's: they are checked against the
 * stream, then stored as they are, by the keeper. An error is answered and the session goes on:
 * training does not stop because a disk is full.
 */
#include "daemon/control/log.h"
#include "daemon/control/server.h"
#include "daemon/control/snapshot_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct save_job {
	struct errand errand;
	struct server *server;
	const struct stream *stream;
	struct run_place place;
	char tag[LIMIT_NAME_BYTES + 1];
	bool ok;
	uint64_t used_ns; /* CPU time */
	struct refusal refusal;
	struct snapshot_saved saved;
	size_t n;
	char bytes[];
};

static void save(struct save_job *job)
{
	struct fault why;
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
		job->ok = snapshot_file_save(&job->place, job->tag, job->bytes, job->n, &job->saved,
				  text, sizeof(text)) ||
			  refuse(&job->refusal, "checkpoint",
				  job->saved.foreign ? "run" : "state_dir", "%s", text);
}

static void save_work(struct keeper_job *work)
{
	struct save_job *job = (struct save_job *)work;
	uint64_t begin = pace_clock();

	save(job);
	job->used_ns = pace_clock() - begin;
}

static void answer(struct connection *c, const struct save_job *job)
{
	struct wire w = {.op = WIRE_SAVED};

	if (!job->ok) {
		log_client(c->uid, LOG_ERROR, "snapshot %s: %s: %s", job->tag, job->refusal.field,
			job->refusal.text);
		connection_error(c, job->refusal.code, job->refusal.field, job->refusal.text);
		return;
	}
	wire_set_text(&w, WIRE_TAG, job->tag);
	wire_set_text(&w, WIRE_PATH, job->saved.path);
	wire_set(&w, WIRE_DIGEST, order_checksum(job->bytes, job->n));
	connection_send(c, &w, NULL, 0);
}

static void save_done(struct keeper_job *work)
{
	struct save_job *job = (struct save_job *)work;
	struct connection *c = errand_back(&job->errand);

	if (c) {
		pace_charge(c, job->used_ns);
		answer(c, job);
	}
	if (job->saved.written)
		quota_written(quota_of(job->server->quotas, job->place.uid), 1);
	if (job->saved.opened)
		runs_cleaned(job->server, &job->place);
	runs_found(job->server, job->place.stream, job->place.run, job->saved.owner);
	free(job);
}

/* What can be said without a look at state_dir. */
static bool check(const struct connection *c, const struct wire *w, struct refusal *why)
{
	if (wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES)
		return refuse(why, "checkpoint", "cursor", "%u bytes, at most %d",
			wire_bytes(w, WIRE_CURSOR).n, LIMIT_CURSOR_BYTES);
	if (keeper_busy_ms(c->server->keeper) >= KEEPER_DEADLINE_MS)
		return refuse(why, "checkpoint", "state_dir",
			"has not answered for %" PRIu64
			" s, nothing is saved: save again once it does",
			keeper_busy_ms(c->server->keeper) / 1000);
	return quota_may_write(c->quota, uv_now(&c->server->loop), why);
}

void snapshot_save(struct connection *c, const struct wire *w)
{
	struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);
	struct save_job *job;
	struct refusal why;

	if (!c->session || !c->session->fed) {
		connection_refuse(c, "checkpoint", "connection", "attach first");
		return;
	}
	if (c->errand) {
		connection_refuse(
			c, "checkpoint", "connection", "wait for the answer to the one before");
		return;
	}
	if (!check(c, w, &why)) {
		connection_error(c, why.code, why.field, why.text);
		return;
	}
	job = calloc(1, sizeof(*job) + b.n);
	if (!job || !wire_text(w, WIRE_TAG, job->tag, sizeof(job->tag)) ||
		!wire_name_ok(job->tag)) {
		free(job);
		connection_error(c, "checkpoint", "tag",
			"not a name: 1 to 64 bytes without '/' and leading dot");
		return;
	}
	job->errand.job = (struct keeper_job){.work = save_work, .done = save_done};
	job->server = c->server;
	job->stream = c->session->stream;
	runs_place(c->server, c->uid, job->stream->config->name, c->session->run, &job->place);
	job->saved.owner = RUN_NOBODY;
	memcpy(job->bytes, b.at, b.n);
	job->n = b.n;
	errand_send(c, &job->errand);
}
