#include "daemon/control/snapshot.h"

#include "daemon/control/control.h"
#include "daemon/control/errand.h"
#include "daemon/control/log.h"
#include "daemon/control/snapshot_file.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct save_job {
	struct errand errand;
	struct control *control;
	struct generation *generation; /* held; the stream's */
	const struct stream *stream;
	struct run_place place;
	char tag[LIMIT_NAME_BYTES + 1];
	bool ok;
	struct fault fault;
	struct snapshot_saved saved;
	size_t n;
	char bytes[];
};

static bool save(struct save_job *job)
{
	struct cursor cursor;
	bool ok = cursor_decode(&cursor, job->bytes, job->n, &job->fault);

	if (ok) {
		ok = cursor_belongs(&cursor, &job->stream->begin, &job->fault);
		cursor_free(&cursor);
	}
	ok = ok && snapshot_file_save(
			   &job->place, job->tag, job->bytes, job->n, &job->saved, &job->fault);
	if (!ok)
		job->fault.code = FAULT_CHECKPOINT;
	return ok;
}

static void save_work(struct keeper_job *work)
{
	struct save_job *job = (struct save_job *)work;

	job->ok = save(job);
}

static void count_failed(const struct stream *stream)
{
	stream->counts->snapshots_failed++;
	stream->counts->snapshot_failed_s = time(NULL);
}

static void count_made(const struct stream *stream)
{
	stream->counts->snapshots++;
	stream->counts->snapshot_s = time(NULL);
}

static void answer(struct connection *c, const struct save_job *job)
{
	struct wire w = {.op = WIRE_SAVED};

	if (!job->ok) {
		log_client(c->uid, LOG_ERROR, "snapshot %s not saved: %s: %s", job->tag,
			job->fault.field, job->fault.text);
		connection_error(c, job->errand.serial, &job->fault);
		return;
	}
	wire_set_text(&w, WIRE_TAG, job->tag);
	wire_set_text(&w, WIRE_PATH, job->saved.path);
	wire_set(&w, WIRE_DIGEST, order_checksum(job->bytes, job->n));
	connection_send(c, job->errand.serial, &w);
}

static void save_done(struct keeper_job *work)
{
	struct save_job *job = (struct save_job *)work;
	struct connection *c = errand_back(&job->errand);
	struct control *control = job->control;
	struct user *user;

	if (job->ok)
		count_made(job->stream);
	else if (c) /* otherwise it was counted when it was late, or the client has left */
		count_failed(job->stream);
	if (c)
		answer(c, job);
	user = user_of(&control->users, job->place.uid);
	if (job->saved.written && user)
		user_charge(user, USER_FILE, 1);
	if (job->saved.opened)
		runs_cleaned(control->runs, &job->place);
	runs_found(control->runs, job->place.stream, job->place.run, job->saved.owner);
	generation_drop(job->generation);
	free(job);
}

static void save_late(struct connection *c, const struct errand *errand)
{
	const struct save_job *job = (const struct save_job *)errand;
	struct fault fault;

	log_client(c->uid, LOG_ERROR,
		"pid %d: snapshot not saved: state_dir has not answered for %d s; check its file "
		"system",
		(int)c->pid, KEEPER_DEADLINE_MS / 1000);
	count_failed(job->stream);
	fault_set(&fault, FAULT_CHECKPOINT, "state_dir",
		"has not answered for %d s; the snapshot may not be saved, save it again later",
		KEEPER_DEADLINE_MS / 1000);
	connection_error(c, errand->serial, &fault);
}

/* All checks that need no access to state_dir. */
static bool check(const struct connection *c, const struct wire *w, struct fault *fault)
{
	uint64_t busy_ms = keeper_busy_ms(c->control->keeper);

	if (wire_bytes(w, WIRE_CURSOR).n > LIMIT_CURSOR_BYTES)
		return fault_set(fault, FAULT_CHECKPOINT, "cursor",
			"%u bytes; a cursor has at most %d", wire_bytes(w, WIRE_CURSOR).n,
			LIMIT_CURSOR_BYTES);
	if (busy_ms >= KEEPER_DEADLINE_MS)
		return fault_set(fault, FAULT_CHECKPOINT, "state_dir",
			"has not answered for %" PRIu64
			" s; the snapshot is not saved, save it again later",
			busy_ms / 1000);
	return user_may_write(c->user, connection_now(c), FAULT_CHECKPOINT, fault);
}

/* NULL with @fault: the tag is not valid, or out of memory. */
static struct save_job *save_job_new(
	const struct connection *c, const struct wire *w, struct fault *fault)
{
	struct wire_bytes b = wire_bytes(w, WIRE_CURSOR);
	struct save_job *job = calloc(1, sizeof(*job) + b.n);

	if (!job) {
		fault_set_passing(fault, FAULT_MEMORY, "tag", PHRASE_MEMORY);
		return NULL;
	}
	if (!wire_text(w, WIRE_TAG, job->tag, sizeof(job->tag)) || !wire_name_ok(job->tag)) {
		free(job);
		fault_set(fault, FAULT_CHECKPOINT, "tag", "must be " PHRASE_NAME);
		return NULL;
	}
	job->errand = (struct errand){.job = {.work = save_work, .done = save_done},
		.late = save_late,
		.serial = wire_number(w, WIRE_SERIAL)};
	job->control = c->control;
	job->generation = generation_hold(c->session->generation);
	job->stream = c->session->stream;
	runs_place(
		c->control->runs, c->uid, job->stream->config->name, c->session->run, &job->place);
	job->saved.owner = RUN_NOBODY;
	memcpy(job->bytes, b.at, b.n);
	job->n = b.n;
	return job;
}

void snapshot_save(struct connection *c, const struct wire *w)
{
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct fault fault;
	struct save_job *job;

	if (c->errand) {
		fault_set(&fault, FAULT_CHECKPOINT, "connection",
			"another snapshot is being saved; wait for its reply");
		connection_refuse(c, serial, &fault);
		return;
	}
	job = check(c, w, &fault) ? save_job_new(c, w, &fault) : NULL;
	if (!job) {
		count_failed(c->session->stream);
		connection_error(c, serial, &fault);
		return;
	}
	errand_send(c->control->keeper, c, &job->errand);
}
