/* Common steps of all ranks of a job: checkpoints, edits, requests. */
#include "tests/sim/job.h"

/* All ranks have the same cursor, byte for byte. It is left in job->shared. */
bool trainer_check_equal(struct trainer *r)
{
	struct job *job = r->job;
	uint8_t bytes[TOKEND_CURSOR_BYTES];
	int64_t n = tokend_cursor(r->t, bytes, sizeof(bytes));
	struct tokend_shape shape;

	CHECK(n > 0 && n <= (int64_t)sizeof(job->shared));
	tokend_shape(r->t, &shape);
	CHECK(shape.lost_wakes == 0);
	world_counts.reattached += shape.reattached - r->reattached;
	r->reattached = shape.reattached;
	if (r->rank == 0) {
		memcpy(job->shared, bytes, (size_t)n);
		job->shared_n = (size_t)n;
		job->shared_from = tokend_taken(r->t);
	}
	job_reduce(job, 0);
	CHECK((size_t)n == job->shared_n && memcmp(bytes, job->shared, job->shared_n) == 0);
	CHECK(tokend_taken(r->t) == job->shared_from);
	job_reduce(job, 0);
	return true;
}

/* ---- checkpoints ---- */

/* The model's own checkpoint. */
static void keep_save(struct job *job, uint64_t next)
{
	struct save *s;

	if (job->saves == SAVES) { /* any of the old ones is deleted */
		unsigned gone = (unsigned)draw(SAVES);

		job->saves--;
		memmove(&job->save[gone], &job->save[gone + 1],
			(job->saves - gone) * sizeof(job->save[0]));
	}
	s = &job->save[job->saves++];
	memcpy(s->bytes, job->shared, job->shared_n);
	s->n = job->shared_n;
	s->next = next;
	s->plan = job->plan;
	history_check(&job->history, next);
	world_counts.checkpoints++;
}

static void save(struct trainer *r)
{
	trainer_check_equal(r);
	if (r->rank == 0)
		keep_save(r->job, tokend_position(r->t));
	job_reduce(r->job, 0);
}

static void attempt(struct snapshot *s, const struct job *job)
{
	if (s->attempts == 4) {
		s->vague = true;
		return;
	}
	memcpy(s->attempt[s->attempts].bytes, job->shared, job->shared_n);
	s->attempt[s->attempts++].n = job->shared_n;
}

/* The daemon's snapshot, which is also kept as the model's checkpoint. */
static void snapshot(struct trainer *r)
{
	struct job *job = r->job;
	unsigned number = (unsigned)draw(TAGS);
	struct snapshot *s = &job->snapshot[number];
	char tag[16];

	save(r);
	if (r->rank == 0) {
		snprintf(tag, sizeof(tag), "t%u", number);
		if (s->node != r->node)
			*s = (struct snapshot){.node = r->node};
		attempt(s, job);

		r->proc->hurried = chance(2);

		int got = tokend_checkpoint(r->t, tag, NULL, 0);

		r->proc->hurried = false;
		if (got == 0) {
			*s = (struct snapshot){
				.node = r->node, .acknowledged = true, .n = job->shared_n};
			memcpy(s->bytes, job->shared, s->n);
			world_counts.snapshots++;
		} else {
			world_say("job %u: snapshot: %s", job->number, tokend_why(r->t));
			trainer_check_error(got == TOKEND_EREFUSED || got == TOKEND_EDATA ||
						    got == TOKEND_EAGAIN ||
						    (got == TOKEND_ECONNECT && tokend_lost(r->t)),
				got, tokend_why(r->t));
		}
	}
	job_reduce(job, 0);
}

/* ---- moves ---- */

static bool fail_together(struct trainer *r, int got)
{
	if (job_reduce(r->job, got < 0) == 0)
		return false;
	job_abort(r->job, got < 0 ? tokend_why(r->t) : "another rank failed");
	return true;
}

/* To a smaller world, or another micro-batch, in one handle. */
static bool rescale(struct trainer *r)
{
	struct job *job = r->job;

	trainer_commit(r, 0);
	trainer_check_equal(r);
	if (r->rank == 0) {
		job->next_world = 1 + draw(job->world);
		job->next_micro = 1 + (uint32_t)draw(4);
		world_counts.rescales++;
	}
	job_reduce(job, 0); /* the new world begins when all have met */
	if (r->rank >= job->world) {
		job->trainer[r->rank] = NULL;
		job->alive--;
		trainer_let_go(r, 0);
		trainer_detach(r);
		return false;
	}
	trainer_let_go(r, (unsigned)draw(r->held + 1));
	return !fail_together(r, tokend_seek(r->t, NULL, 0, r->rank, job->world, job->micro));
}

/* Back to a checkpoint, in one handle. */
static bool back(struct trainer *r)
{
	struct job *job = r->job;

	if (r->rank == 0)
		job->from = job->saves ? (int)draw(job->saves) : -1;
	job_reduce(job, 0);
	if (job->from < 0)
		return true;

	const struct save *s = &job->save[job->from];

	if (fail_together(r, tokend_seek(r->t, s->bytes, s->n, r->rank, job->world, job->micro)))
		return false;
	r->waiting = 0;
	CHECK(tokend_taken(r->t) == s->next && tokend_position(r->t) == s->next);
	if (r->rank == 0) {
		job->plan = s->plan;
		saves_prune(job);
	}
	job_reduce(job, 0);
	return trainer_check_equal(r);
}

/* ---- mixes ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The truth about a mix of @names: missing datasets are appended by name. */
static void note_mix(struct job *job, const struct mix *m, uint64_t at)
{
	const struct stream_plan *stream = job->stream;
	const char *missing[DATASETS];
	double weights[DATASETS] = {0};
	unsigned n = 0;

	for (unsigned i = 0; i < m->n; i++) {
		bool known = false;

		for (uint32_t d = 0; d < job->plan.datasets; d++)
			known |= strcmp(stream->source[job->plan.source[d]].name, m->name[i]) == 0;
		if (!known)
			missing[n++] = m->name[i];
	}
	qsort(missing, n, sizeof(missing[0]), by_name);
	for (unsigned i = 0; i < n; i++)
		for (unsigned d = 0; d < stream->datasets; d++)
			if (strcmp(stream->source[d].name, missing[i]) == 0) {
				plan_add(&job->plan, d);
				world_counts.additions++;
			}
	for (uint32_t d = 0; d < job->plan.datasets; d++)
		for (unsigned i = 0; i < m->n; i++)
			if (strcmp(stream->source[job->plan.source[d]].name, m->name[i]) == 0)
				weights[d] = m->weight[i];
	plan_mix(&job->plan, at, weights);
	world_counts.mixes++;
}

/* A random mix of the datasets that the config of a new daemon has. */
void mix_invent(const struct job *job, struct mix *m)
{
	const struct stream_plan *stream = job->stream;
	uint32_t all = stream_datasets(stream, world_version);

	m->n = 0;
	for (uint32_t d = 0; d < all; d++)
		if (d == 0 || chance(2)) {
			m->name[m->n] = stream->source[d].name;
			m->weight[m->n++] = (double)(1 + draw(9));
		}
	for (unsigned i = m->n; i > 1; i--) {
		unsigned j = (unsigned)draw(i);
		const char *name = m->name[i - 1];
		double weight = m->weight[i - 1];

		m->name[i - 1] = m->name[j], m->weight[i - 1] = m->weight[j];
		m->name[j] = name, m->weight[j] = weight;
	}
}

static bool set_mix(struct trainer *r)
{
	struct job *job = r->job;
	uint64_t at = 0;

	if (r->rank == 0)
		mix_invent(job, &job->mix);
	job_reduce(job, 0);

	int got = tokend_set_mix(r->t, job->mix.name, job->mix.weight, job->mix.n, &at);

	if (job->plan.end != UINT64_MAX && job->stream->epochs)
		CHECK(got < 0);
	if (fail_together(r, got))
		return false;
	if (r->rank == 0)
		note_mix(job, &job->mix, at);
	CHECK(job_reduce(job, at) == at);
	return trainer_check_equal(r);
}

/* ---- an operator's requests ---- */

static bool parse_mix(const char *args, struct mix *m, const struct stream_plan *stream)
{
	m->n = 0;
	for (const char *line = args; line && *line;
		line = strchr(line, '\n'), line += line != NULL) {
		double weight;
		char name[16];

		if (sscanf(line, "weight %lf %15s", &weight, name) != 2)
			return false;
		for (unsigned d = 0; d < stream->datasets; d++)
			if (strcmp(stream->source[d].name, name) == 0) {
				m->name[m->n] = stream->source[d].name;
				m->weight[m->n++] = weight;
			}
	}
	return m->n > 0;
}

/* One rank that sees the request fetches it for all. False: it was cancelled. */
static bool fetch(struct trainer *r, uint64_t number)
{
	struct job *job = r->job;
	bool sees = tokend_request_number(r->t) == number;
	uint64_t owner = job_reduce(job, sees ? job->world - r->rank : 0);
	struct tokend_request request;

	if (r->rank == 0)
		job->kind[0] = 0;
	job_reduce(job, 0);
	if (owner > 0 && r->rank == job->world - owner) {
		if (tokend_request(r->t, &request) == 0 && request.number == number) {
			snprintf(job->kind, sizeof(job->kind), "%s", request.kind);
			CHECK(strlen(request.args) < sizeof(job->args));
			strcpy(job->args, request.args);
			tokend_answer(r->t, number, TOKEND_NOTED, "");
		}
	}
	job_reduce(job, 0);
	return job->kind[0] != 0;
}

static void note_effect(struct trainer *r, uint64_t from, uint64_t acts)
{
	struct job *job = r->job;
	struct mix mix;

	if (r->rank != 0)
		return;
	if (strcmp(job->kind, "mix") == 0 && parse_mix(job->args, &mix, job->stream)) {
		note_mix(job, &mix, acts);
	} else if (strcmp(job->kind, "skip") == 0) {
		history_skip(&job->history, from, acts);
		world_counts.skips++;
	}
}

/* Carries the request out on all ranks, or on none. */
static bool obey(struct trainer *r, uint64_t number)
{
	struct job *job = r->job;
	uint64_t from = tokend_taken(r->t), acts = from;
	bool lets_down = chance(4 * job->world);
	bool edits = strcmp(job->kind, "mix") == 0 || strcmp(job->kind, "skip") == 0;
	int got = edits ? tokend_obey(r->t, job->kind, job->args, &acts) : 0;
	bool failed = job_reduce(job, got < 0 || lets_down) != 0;

	if (failed) {
		if (got == 0)
			world_counts.undone += tokend_undo(r->t) == 1;
		CHECK(tokend_taken(r->t) == from);
		world_counts.failed++;
	} else {
		CHECK(job_reduce(job, acts) == acts);
		note_effect(r, from, acts);
		job_reduce(job, 0);
	}
	trainer_check_equal(r);
	if (r->rank == 0)
		job->obeyed[job->obeys++ % OBEYED] =
			(struct obeyed){number, failed ? TOKEND_FAILED : TOKEND_DONE};
	job_reduce(job, 0);
	if (tokend_request_number(r->t) == number)
		tokend_answer(r->t, number, failed ? TOKEND_FAILED : TOKEND_DONE, "");
	world_counts.answered++;
	return !failed;
}

bool job_obeyed(const struct job *job, uint64_t number, uint64_t outcome)
{
	for (unsigned i = 0; i < OBEYED; i++)
		if (job->obeyed[i].number == number && job->obeyed[i].outcome == outcome)
			return true;
	return false;
}

static bool handle_request(struct trainer *r, uint64_t number)
{
	struct job *job = r->job;

	if (!fetch(r, number))
		return true;
	bool commits = strcmp(job->kind, "mix") != 0; /* a skip is committed with the last batch */

	if (commits)
		trainer_commit(r, 0);
	if (strcmp(job->kind, "checkpoint") == 0 || strcmp(job->kind, "drain") == 0 ||
		strcmp(job->kind, "rescale") == 0)
		snapshot(r);
	if (!obey(r, number))
		return true;
	if (strcmp(job->kind, "drain") != 0 && strcmp(job->kind, "rescale") != 0)
		return true;
	if (r->rank == 0)
		world_counts.drains++;
	job->stopping = true;
	return false;
}

/* ---- the meeting ---- */

static bool act(struct trainer *r, enum action action)
{
	switch (action) {
	case SAVE:
		save(r);
		return true;
	case SNAPSHOT:
		snapshot(r);
		return true;
	case RESCALE:
		return rescale(r);
	case BACK:
		return back(r);
	case SET_MIX:
		return r->job->stream->epochs ? true : set_mix(r);
	case STOP:
		save(r);
		r->job->stopping = true;
		return false;
	case NOTHING:
		break;
	}
	return true;
}

/* All ranks have taken all batches of a finite stream. */
static bool end(struct trainer *r)
{
	struct job *job = r->job;

	trainer_commit(r, 0);
	trainer_check_equal(r);
	if (r->rank == 0) {
		CHECK(tokend_position(r->t) == job->plan.end);
		history_check(&job->history, job->plan.end);
		world_counts.finished++;
		job->over = true;
	}
	job_reduce(job, 0);
	job->stopping = true;
	return false;
}

bool trainer_meet(struct trainer *r)
{
	struct job *job = r->job;
	uint64_t number = job_reduce(job, tokend_request_number(r->t));

	if (r->rank == 0)
		job->next = tokend_taken(r->t);
	if (tokend_taken(r->t) == job->plan.end)
		return end(r);
	if (number != 0 && number != job->handled) {
		bool goes_on = handle_request(r, number);

		/* Without an effect it may be seen again, as another operator's with its number. */
		job->handled = number;
		if (!goes_on)
			return false;
	}
	enum action wish = NOTHING;

	if (r->rank == 0) {
		wish = job->action;
		job->action = NOTHING;
	}
	return act(r, (enum action)job_reduce(job, (uint64_t)wish));
}
