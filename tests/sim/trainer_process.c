/* A trainer process: libtokend, and a check of every batch that it returns. */
#include "tests/sim/job.h"

#include "client/lib/handle.h"

static uint64_t sum_of(const struct tokend_batch *b)
{
	const uint8_t *bytes = b->tokens;
	size_t n = (size_t)b->rows * b->window_tokens * b->token_bytes;
	uint64_t sum = 0;

	if (world_stamps)
		return 0;
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t word;

		memcpy(&word, bytes + i, 8);
		sum = (sum ^ word) * UINT64_C(0x100000001B3);
	}
	return sum;
}

static void check_tokens(const struct tokend_batch *b, uint32_t row, const struct plan *plan,
	const struct plan_place *place)
{
	const uint8_t *at =
		(const uint8_t *)b->tokens + (size_t)row * b->window_tokens * b->token_bytes;
	uint64_t key = plan->stream->source[plan->source[place->dataset]].key;
	uint32_t n =
		world_stamps && b->window_tokens > STAMP_TOKENS ? STAMP_TOKENS : b->window_tokens;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = storage_token(key, place->shard, place->offset + i), got;

		if (b->token_bytes == 2)
			CHECK(((const uint16_t *)at)[i] == (uint16_t)token);
		else
			CHECK((memcpy(&got, at + i * 4, 4), got == token));
	}
}

static void check_row(
	const struct trainer *r, const struct tokend_batch *b, uint32_t row, uint64_t position)
{
	const struct tokend_row *got = &b->row[row];
	const struct plan *plan = &r->job->plan;
	struct plan_place place;

	plan_at(plan, position, &place);
	CHECK(got->position == position);
	CHECK(strcmp(tokend_dataset(r->t, got->dataset),
		      plan->stream->source[plan->source[place.dataset]].name) == 0);
	CHECK(got->dataset == place.dataset && got->epoch == place.epoch);
	CHECK(got->window == place.window && got->shard == place.shard &&
		got->offset == place.offset);
	check_tokens(b, row, plan, &place);
	history_take(&r->job->history, position);
	world_counts.rows++;
}

static void check_padding(const struct tokend_batch *b, uint32_t row)
{
	const uint8_t *at =
		(const uint8_t *)b->tokens + (size_t)row * b->window_tokens * b->token_bytes;

	CHECK(b->row[row].position == TOKEND_PADDING);
	for (size_t i = 0; i < (size_t)b->window_tokens * b->token_bytes; i++)
		CHECK(at[i] == 0);
	world_counts.padding++;
}

static void check_batch(const struct trainer *r, const struct tokend_batch *b, uint64_t taken)
{
	const struct job *job = r->job;
	uint64_t end = job->plan.end, first = taken + r->rank * job->micro;
	uint64_t valid = first >= end ? 0 : end - first < job->micro ? end - first : job->micro;

	CHECK(b->rows == job->micro && b->rows_valid == valid);
	CHECK(valid == 0 || b->position == first);
	CHECK(b->next ==
		(end - taken > job->world * job->micro ? taken + job->world * job->micro : end));
	for (uint32_t i = 0; i < b->rows; i++)
		if (i < valid)
			check_row(r, b, i, first + i);
		else
			check_padding(b, i);
	world_counts.batches++;
}

/* ---- waiting ---- */

bool trainer_starves(const struct proc *p, const struct proc *daemon)
{
	const struct trainer *r = p->owner;
	const struct tokend *t = r->t;

	if (!t || t->fd < 0 || r->node->daemon != daemon)
		return false;

	const struct ring *ring = &t->mapping->ring;
	uint64_t taken = t->mapping->queue.taken, wake_at = atomic_load(&ring->header->wake_at);

	return atomic_load(&ring->control->client_waits) == taken + 1 &&
	       (atomic_load(&ring->header->published) > taken ||
		       (wake_at != 0 && atomic_load(&ring->control->released) >= wake_at));
}

/* ---- holding and committing ---- */

static void let_go(struct trainer *r, unsigned i)
{
	CHECK(sum_of(&r->hold[i].batch) == r->hold[i].sum);
	tokend_release(r->t, &r->hold[i].batch);
	r->hold[i] = r->hold[--r->held];
}

static unsigned oldest(const struct trainer *r)
{
	unsigned best = 0;

	for (unsigned i = 1; i < r->held; i++)
		if (r->hold[i].number < r->hold[best].number)
			best = i;
	return best;
}

/* Releases held batches in any order until @keep are left. They must be as they were. Slots are
 * filled in order, so none is held for longer than the ring is. */
void trainer_let_go(struct trainer *r, unsigned keep)
{
	while (r->held > keep)
		let_go(r, (unsigned)draw(r->held));
	while (r->held > 0 && r->number - r->hold[oldest(r)].number >= r->job->slots - 1)
		let_go(r, oldest(r));
}

void trainer_commit(struct trainer *r, unsigned keep)
{
	unsigned n = r->waiting > keep ? r->waiting - keep : 0;

	for (unsigned i = 0; i < n; i++) {
		CHECK(tokend_commit(r->t, r->uncommitted[i]) == 0);
		world_counts.committed++;
	}
	r->waiting -= n;
	memmove(r->uncommitted, r->uncommitted + n, r->waiting * sizeof(r->uncommitted[0]));
}

static void keep(struct trainer *r, const struct tokend_batch *b)
{
	struct job *job = r->job;

	CHECK(r->held <= HOLD);
	r->hold[r->held].batch = *b;
	r->hold[r->held].number = ++r->number;
	r->hold[r->held++].sum = sum_of(b);
	trainer_let_go(r, chance(2) ? job->hold : (unsigned)draw(job->hold + 1));
	if (job->ahead) {
		r->uncommitted[r->waiting++] = b->next;
		trainer_commit(r, job->ahead);
	}
}

/* ---- a step ---- */

static int next_batch(struct trainer *r, struct tokend_batch *b)
{
	if (!r->job->polls || chance(4)) {
		int got;

		do
			got = tokend_next(r->t, b);
		while (got == TOKEND_EAGAIN);
		return got;
	}
	for (;;) {
		int got = tokend_try_next(r->t, b);

		if (got != TOKEND_EAGAIN)
			return got;
		if (tokend_lost(r->t))
			tokend_attend(r->t);
		fiber_sleep((int64_t)draw(200 * MICRO));
	}
}

void trainer_check_error(bool expected, int got, const char *why)
{
	if (!expected)
		fprintf(stderr, "sim: error %d: %s\n", got, why);
	CHECK(expected);
}

static void check_lost(int got, const char *why)
{
	trainer_check_error(got == TOKEND_ECONNECT, got, why);
}

static bool begins(const char *why, const char *field)
{
	return strncmp(why, field, strlen(field)) == 0;
}

/* An attach may be refused for lack of memory, an unreadable snapshot, a run that was lost, or a
 * daemon with the old config. */
static void check_refusal(const struct trainer *r, const char *why)
{
	const struct job *job = r->job;

	world_say("refused: %s", why);
	CHECK(begins(why, "slots: ") || (begins(why, "tag: ") && job->tag[0]) ||
		(begins(why, "dataset ") && world_version > 0 &&
			job->stream->first_datasets < job->stream->datasets));
	world_counts.refused++;
}

/* All others are failures of ours. */
static void check_error(const struct trainer *r, int got)
{
	const struct job *job = r->job;
	int64_t failed_at = r->node->storage.failed_at[job->stream - world_stream];
	int64_t ring = job->slots * job->compute; /* its batches come before the error */

	if (got == TOKEND_EDATA)
		CHECK(failed_at > 0 && fiber_now - failed_at < 60 * SECOND + ring);
	else if (got == TOKEND_EREFUSED)
		check_refusal(r, tokend_why(r->t));
	else
		check_lost(got, tokend_why(r->t));
}

/* Batches may be ready meanwhile, and are taken afterwards, even if the call is interrupted. */
static void look_for_daemon(struct trainer *r)
{
	static uint8_t bytes[TOKEND_CURSOR_BYTES];

	if (chance(2)) {
		tokend_attend(r->t);
		return;
	}
	r->proc->hurried = chance(2);
	tokend_stream(r->t, bytes, sizeof(bytes));
	r->proc->hurried = false;
}

static bool step(struct trainer *r)
{
	struct job *job = r->job;
	uint64_t taken = tokend_taken(r->t);
	struct tokend_batch b;

	if (tokend_lost(r->t))
		look_for_daemon(r);

	int got = next_batch(r, &b);

	if (got < 0) {
		check_error(r, got);
		job_abort(job, tokend_why(r->t));
		return false;
	}
	if (got == 0) {
		CHECK(taken == job->plan.end);
		return trainer_meet(r);
	}
	check_batch(r, &b, taken);
	keep(r, &b);
	fiber_sleep((int64_t)draw((uint64_t)job->compute));
	if (chance(500))
		fiber_sleep((int64_t)draw(20 * MILLI)); /* a slow step */
	if (chance(2500))				/* so long that a lost wake-up is noticed */
		fiber_sleep(2 * SECOND + (int64_t)draw(2 * SECOND));
	job->progress += r->rank == 0;
	if (++r->since < job->every)
		return true;
	r->since = 0;
	return trainer_meet(r);
}

/* ---- the beginning ---- */

/* Called every 100 ms of a wait, and after a signal: its handler ends the wait, or not. */
static int interrupt(void *argument)
{
	const struct trainer *r = argument;
	bool comes = r->proc->hurried || (r->job->nervous && chance(5));

	world_counts.interrupts += comes;
	return comes;
}

static int attach(struct trainer *r, const struct save *save)
{
	struct job *job = r->job;
	struct tokend_options o = {.size = sizeof(o),
		.socket = r->node->socket,
		.stream = job->stream->name,
		.run = job->run,
		.rank = r->rank,
		.world = job->world,
		.micro_batch = job->micro,
		.slots = job->slots,
		.connect_ms = 100000,
		.strict = job->strict,
		.idle = interrupt,
		.context = r};
	char why[1024];

	if (job->tag[0]) {
		o.tag = job->tag;
	} else if (save) {
		o.cursor = save->bytes;
		o.cursor_bytes = save->n;
	} else {
		o.start_at_position = 1;
		o.position = job->begin_at;
	}
	int got;

	do
		got = tokend_attach(&r->t, &o, why, sizeof(why));
	while (got == TOKEND_EAGAIN);

	world_counts.attaches++;
	if (got < 0) {
		if (got == TOKEND_EREFUSED)
			check_refusal(r, why);
		else
			check_lost(got, why);
		job_abort(job, why);
	}
	return got;
}

/* The first rank learns from its cursor which datasets the daemon's config has. */
static void begin_plan(struct trainer *r)
{
	struct job *job = r->job;
	uint32_t n = 0;

	while (tokend_dataset(r->t, n))
		n++;
	CHECK(n == job->stream->first_datasets || n == job->stream->datasets);
	plan_begin(&job->plan, job->stream, n);
	for (uint32_t d = 0; d < n; d++)
		CHECK(strcmp(tokend_dataset(r->t, d), job->stream->source[d].name) == 0);
	history_clear(&job->history, job->begin_at);
	job->begun = true;
	job->saves = 0;
}

static bool begin(struct trainer *r)
{
	struct job *job = r->job;
	const struct save *save = job->from >= 0 ? &job->save[job->from] : NULL;

	if (attach(r, save) < 0)
		return false;
	r->reattached = 0;
	CHECK(tokend_position(r->t) == (save ? save->next : job->begin_at));
	if (save) {
		uint8_t bytes[TOKEND_CURSOR_BYTES];
		int64_t n = tokend_cursor(r->t, bytes, sizeof(bytes));

		CHECK(n == (int64_t)save->n && memcmp(bytes, save->bytes, save->n) == 0);
		world_counts.restored++;
	}
	/* As the Loader does: another config on another node would give another order. */
	uint64_t mine = tokend_fingerprint(r->t);
	uint64_t most = job_reduce(job, mine), least = ~job_reduce(job, ~mine);

	if (most != least) {
		CHECK(!save && world_version > 0 &&
			job->stream->first_datasets < job->stream->datasets);
		job_abort(job, "fingerprints differ");
		return false;
	}
	if (r->rank == 0 && !save)
		begin_plan(r);
	job_reduce(job, 0);
	return trainer_check_equal(r);
}

void trainer_detach(struct trainer *r)
{
	struct tokend *t = r->t;

	r->t = NULL;
	tokend_detach(t);
}

static void leave(struct trainer *r)
{
	if (r->t) {
		trainer_let_go(r, (unsigned)draw(r->held + 1));
		trainer_detach(r);
	}
	CHECK(r->proc->bytes == 0 && !r->proc->views && fd_count(r->proc) == 0);
}

void trainer_main(void *argument)
{
	struct trainer *r = argument;

	if (begin(r))
		while (step(r))
			;
	if (r->job->stopping)
		leave(r);
	proc_kill(r->proc);
}
