/*
 * The memory of rings. A client that seeks gets its next ring before it closes the present one, so
 * that it can continue if the attach is refused. Meanwhile `memory:` counts the larger ring of the
 * two only, so that an operator's mix needs no additional memory.
 */
#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

enum {
	/* The default size of a ring, within a range of slots. */
	RING_BYTES = 4 << 20,
	SLOTS_LEAST = 4,
	SLOTS_MOST = 64,
	STORED = 4, /* so many times as much hides the latency of a store, read by window */
	MIB = 1 << 20,
};

static uint64_t default_slots(const struct stream *stream, uint64_t micro_batch)
{
	uint64_t token = stream->token_bytes + (stream->config->documents ? sizeof(uint32_t) : 0) +
			 stream->config->loss_mask;
	uint64_t slot = micro_batch * (stream->config->seq_len + stream->config->extra) * token;
	uint64_t times = 1;

	for (uint32_t d = 0; d < stream->config->datasets; d++)
		if (stream->dataset[d].bucket && stream->dataset[d].piece == 0)
			times = STORED;

	uint64_t least = times * SLOTS_LEAST, most = times * SLOTS_MOST;
	uint64_t slots = slot ? times * RING_BYTES / slot : most;

	return slots < least ? least : slots > most ? most : slots;
}

bool session_ring(const struct stream *stream, uint64_t micro_batch, uint64_t *slots,
	struct ring_geometry *geometry, struct fault *fault)
{
	const struct config_stream *c = stream->config;
	unsigned annotations =
		(c->documents ? RING_DOCUMENTS : 0) | (c->loss_mask ? RING_LOSS_MASK : 0);

	if (*slots == 0)
		*slots = default_slots(stream, micro_batch);
	return ring_geometry(geometry, *slots, micro_batch, c->seq_len + c->extra,
		stream->token_bytes, annotations, fault);
}

/* A session may have one successor that stays and one that is closing, and none while it replaces
 * another session that stays. So a client that opens rings and closes none gets at most twice what
 * `memory:` allows. */
static bool may_be_replaced(const struct sessions *sessions, const struct session *former)
{
	const struct session *before = former->replaces;
	unsigned taken = 0;

	if (before && (!before->connection->closing || before->replaces))
		return false;
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = sessions->of[id];

		if (s && s->replaces == former)
			taken += s->connection->closing ? 1 : 2;
	}
	return taken < 2;
}

/* The session that the attach message @w replaces, if of the same process and run; or NULL. */
static struct session *find_replaced(const struct session *s, const struct wire *w)
{
	const struct connection *c = s->connection;
	uint64_t id = wire_has(w, WIRE_REPLACES) ? wire_number(w, WIRE_REPLACES) : LIMIT_SESSIONS;
	struct session *former = id < LIMIT_SESSIONS ? s->control->sessions.of[id] : NULL;

	if (!former || former == s || former->connection->pid != c->pid ||
		former->connection->uid != c->uid || former->peer != s->peer ||
		strcmp(former->run, s->run) != 0 || !may_be_replaced(&s->control->sessions, former))
		return NULL;
	return former;
}

/* Have `memory:` and the user's cap room for @need bytes, of which a replaced ring has @lent? */
static bool has_room(const struct session *s, uint64_t need, uint64_t lent, struct fault *fault)
{
	const struct control *control = s->control;
	const struct sessions *all = &control->sessions;
	uint64_t limit = control->config->memory_bytes;
	uint64_t left = limit > all->memory_bytes ? limit - all->memory_bytes : 0;
	/* Will it fit when all other sessions have ended? */
	bool passing = need + all->staging_bytes <= limit;

	if (need - lent > left)
		return (passing ? fault_set_passing : fault_set)(fault, FAULT_MEMORY, "slots",
			"a ring of %" PRIu64 " slots needs %" PRIu64 " bytes, but only %" PRIu64
			" of %" PRIu64
			" are left; raise memory: in %s, or the cgroup's limit if that is less, "
			"or " PHRASE_SLOTS,
			s->slots, need, left, limit, control->config->path);
	return need <= lent ||
	       user_may_take(s->connection->user, need - lent, limit - all->staging_bytes, fault);
}

bool session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	struct fault *fault)
{
	if (s->micro_batch < 1 || s->micro_batch > LIMIT_MICRO_BATCH)
		return fault_set(fault, FAULT_ATTACH, "micro_batch", "%" PRIu64 " is not 1 to %d",
			s->micro_batch, LIMIT_MICRO_BATCH);
	if (!session_ring(s->stream, s->micro_batch, &s->slots, geometry, fault)) {
		fault->code = FAULT_ATTACH;
		return false;
	}

	uint64_t need = geometry->meta_bytes + geometry->data_bytes;
	struct session *former = find_replaced(s, w);
	uint64_t lent = !former ? 0 : need < former->bytes ? need : former->bytes;

	if (!has_room(s, need, lent, fault))
		return false;
	s->bytes = need;
	s->lent = lent;
	s->replaces = former;
	s->control->sessions.memory_bytes += need - lent;
	s->connection->user->bytes += need;
	user_charge(s->connection->user, need / MIB);
	return true;
}

/* From now on all of its ring counts. */
static void end_pair(struct session *s)
{
	if (s->replaces)
		s->replaces->outlived_ms = uv_now(s->control->loop);
	s->control->sessions.memory_bytes += s->lent;
	s->lent = 0;
	s->replaces = NULL;
}

void session_release(struct session *s)
{
	struct sessions *all = &s->control->sessions;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++)
		if (all->of[id] && (all->of[id] == s || all->of[id]->replaces == s))
			end_pair(all->of[id]);
	assert(all->memory_bytes >= s->bytes);
	all->memory_bytes -= s->bytes;
	s->connection->user->bytes -= s->bytes;
	s->bytes = 0;
}
