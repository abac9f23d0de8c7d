/*
 * The daemon's reader, over storage without files: a token is a function of its dataset, shard and
 * offset. Reads end in any order, in halves, late, or with a fault.
 */
#include "tests/sim/node.h"

#include "daemon/catalog/catalog.h"
#include "daemon/engine/feed.h"
#include "daemon/reader/reader.h"

#include <errno.h>

enum { QUEUED = LIMIT_READS, TRIES = 3, LOOKED_AT = 64 };

struct queued {
	struct reader_read read;
	int64_t at;
	unsigned ticks, tries;
	bool begun;
};

struct reader {
	struct node *node;
	struct proc *proc; /* the daemon */
	struct queued queued[QUEUED];
	unsigned n;
	bool kicked;
	struct fault fault;
};

struct reader *storage_reader(struct node *node)
{
	struct reader *r = __wrap_calloc(1, sizeof(*r));

	r->node = node;
	r->proc = fiber_proc();
	return r;
}

void reader_close(struct reader *r)
{
	__wrap_free(r);
}

const char *reader_name(const struct reader *r)
{
	(void)r;
	return "sim";
}

const char *reader_notes(const struct reader *r)
{
	(void)r;
	return "";
}

/* ---- wake-ups that the engine had to find itself ---- */

/* The wake-ups that refills could replace, and when that was first seen. */
static struct {
	const struct feed *feed;
	uint64_t wake_at;
	int64_t since;
} late[LOOKED_AT];

/* A refill does not wake a feed whose client has to: its wake-up comes within a second. */
bool __real_feed_refill(struct feed *feed);
bool __wrap_feed_refill(struct feed *feed)
{
	const struct ring *ring = &feed->options.ring;
	unsigned i = feed->options.id % LOOKED_AT;

	/* An engine that is alone (engine.c) loses some on purpose. */
	if (!fiber_current || feed->wake_at == 0 ||
		atomic_load(&ring->control->released) < feed->wake_at)
		return __real_feed_refill(feed);
	if (late[i].feed != feed || late[i].wake_at != feed->wake_at) {
		late[i].feed = feed;
		late[i].wake_at = feed->wake_at;
		late[i].since = fiber_now;
	}
	CHECK(fiber_now - late[i].since < 2 * SECOND); /* no wake-up was lost */
	return false;
}

/* ---- tokens ---- */

uint32_t storage_token(uint64_t key, uint64_t shard, uint64_t token)
{
	uint64_t x = (key ^ shard << 48 ^ token) * UINT64_C(0x9E3779B97F4A7C15);

	return (uint32_t)(x >> 32);
}

static uint64_t stamped(const struct reader_read *r)
{
	return world_stamps && r->tokens > STAMP_TOKENS ? STAMP_TOKENS : r->tokens;
}

static void fill(const struct reader_read *r, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++) {
		uint32_t token = storage_token(r->dataset->digest, r->shard, r->token + i);

		if (r->dataset->token_bytes == 2)
			((uint16_t *)r->to)[i] = (uint16_t)token;
		else
			((uint32_t *)r->to)[i] = token;
	}
}

void reader_queue(struct reader *r, const struct reader_read *read)
{
	const struct storage *s = &r->node->storage;
	struct queued *q = &r->queued[r->n++];

	CHECK(r->n <= QUEUED);
	*q = (struct queued){
		.read = *read, .at = fiber_now + 2 * MICRO + (int64_t)draw((uint64_t)s->latency)};
	if (s->slow && chance(s->slow))
		q->at += (int64_t)draw(50 * MILLI);
	if (q->at < s->stalled_until)
		q->at = s->stalled_until + (int64_t)draw((uint64_t)s->latency);
}

void reader_commit(struct reader *r)
{
	for (unsigned i = 0; i < r->n; i++) {
		struct queued *q = &r->queued[i];

		if (q->begun)
			continue;
		q->begun = true;
		if (ring_mapped(r->proc, q->read.to, 1))
			fill(&q->read, 0, stamped(&q->read) / 2);
	}
}

static unsigned earliest(const struct reader *r)
{
	unsigned best = 0;

	for (unsigned i = 1; i < r->n; i++)
		if (r->queued[i].at < r->queued[best].at)
			best = i;
	return best;
}

/* Ends a try of a read: with its last tokens, or with a fault. True: it is tried again later. */
static bool finish(struct reader *r, struct queued *q, const struct fault **fault)
{
	const struct reader_read *read = &q->read;
	struct storage *s = &r->node->storage;
	uint64_t n = stamped(read);
	bool bad = s->eio && chance(s->eio);

	if (ring_mapped(r->proc, read->to, read->tokens * read->dataset->token_bytes))
		fill(read, n / 2, bad ? n - n / 4 : n);
	world_counts.reads++;
	*fault = NULL;
	if (!bad)
		return false;
	fault_set(&r->fault, FAULT_IO, "", "cannot read: Input/output error");
	r->fault.error = EIO;
	*fault = &r->fault;
	world_counts.eio++;
	s->failed_at[read->stream] = fiber_now;
	q->at = fiber_now + SECOND;
	return !chance(30) && ++q->tries < TRIES;
}

unsigned reader_reap(struct reader *r, struct reader_done *done, unsigned max, int timeout_ms)
{
	int64_t until = fiber_now + timeout_ms * MILLI;
	unsigned n = 0;

	system_call();
	for (;;) {
		while (r->n > 0 && n < max) {
			unsigned i = earliest(r);
			struct queued q = r->queued[i];

			if (q.at > fiber_now)
				break;
			const struct fault *fault;
			bool again = finish(r, &q, &fault);

			r->queued[i] = r->queued[--r->n];
			if (again || (fault && n > 0)) /* a fault comes alone: later */
				r->queued[r->n++] = q;
			if (again)
				continue;
			if (fault && n > 0)
				return n;
			done[n++] = (struct reader_done){
				.tag = q.read.tag,
				.dataset = q.read.dataset,
				.tokens = q.read.tokens,
				.since_ns = q.read.since_ns,
				.fault = fault,
			};
			if (fault)
				return n;
		}
		if (n > 0 || r->kicked || fiber_now >= until) {
			r->kicked = false;
			return n;
		}
		int64_t next = r->n > 0 ? r->queued[earliest(r)].at : NEVER;

		fiber_block(r, next < until ? next : until);
	}
}

void reader_kick(struct reader *r)
{
	r->kicked = true;
	fiber_wake(r);
}

/* This daemon never reads its config again. */
bool reader_busy(const struct reader *r, struct reader_hang *which)
{
	(void)r, (void)which;
	return false;
}

struct reader *reader_open(
	const struct reader_options *options, char *note, size_t note_bytes, struct fault *fault)
{
	(void)options, (void)note, (void)note_bytes, (void)fault;
	CHECK(false);
	return NULL;
}

uint64_t reader_memory(const struct reader_options *options)
{
	(void)options;
	return 0;
}

/* Nor do its shards change. */
bool __wrap_dataset_current(const struct dataset *d, struct fault *fault)
{
	(void)d, (void)fault;
	return true;
}

/* All its datasets are local. */
void reader_allow(struct reader *r, uint32_t session)
{
	(void)r, (void)session;
}

void reader_cancel(struct reader *r, uint32_t session)
{
	(void)r, (void)session;
	CHECK(false);
}

void reader_tick(struct reader *r)
{
	for (unsigned i = 0; i < r->n; i++)
		r->queued[i].ticks++;
}

struct reader_hang reader_hang(const struct reader *r, uint32_t stream)
{
	struct reader_hang hang = {0};

	for (unsigned i = 0; i < r->n; i++) {
		const struct queued *q = &r->queued[i];

		if (q->read.stream == stream && q->ticks > 2 && q->ticks > hang.ticks)
			hang = (struct reader_hang){q->ticks, q->read.dataset, q->read.shard};
	}
	return hang;
}
