/* Steps of the engine; its actions are checked and carried out. */
#include "tests/sim/engine_sim.h"

/* Checks that the read goes into a slot that the client may not read yet. */
void step_check_target(struct sim *sim, const struct client *c, const struct engine_action *a)
{
	const struct ring_geometry *g = &c->ring.geometry;
	uint32_t index = (uint32_t)a->tag, slot = index / g->rows;
	uint64_t row_bytes = (uint64_t)g->window_tokens * g->token_bytes;

	CHECK(sim, a->tag >> 32 == a->id && slot < g->slots);
	CHECK(sim,
		a->to == (uint8_t *)ring_slot_data(&c->ring, slot) + index % g->rows * row_bytes);
	CHECK(sim, a->tokens == g->window_tokens);
	for (uint64_t s = c->released; s < published(c); s++)
		CHECK(sim, c->hostile || s % g->slots != slot);
}

static void begin_read(struct sim *sim, const struct engine_action *a)
{
	struct client *c = client_of(sim, a->id);
	const struct dataset *d = a->owner;
	bool again = sim->retried && sim->retried->action.tag == a->tag;

	CHECK(sim, c->state == RUNNING && !c->told);
	CHECK(sim, queue_reads(sim, d->queue) < (d->queue ? sim->store_depth : sim->depth));
	CHECK(sim, again || d->queue || share_reads(sim, c->stream) < share_most(sim, c->stream));
	sim->counts.away += d->queue > 0;
	CHECK(sim, d >= c->stream->dataset && d < c->stream->dataset + c->cursor.datasets);
	CHECK(sim, a->shard < d->table.shards && a->token <= d->tokens[a->shard] - a->tokens);
	step_check_target(sim, c, a);
	CHECK(sim, !c->reading[(uint32_t)a->tag]);
	c->reading[(uint32_t)a->tag] = true;
	sim->read[sim->reads++] =
		(struct read){.action = *a, .tries = again ? sim->retried->tries + 1 : 1};
	sim->counts.retries += again;
	if (again) {
		CHECK(sim, sim->retried->tries < TRIES);
		CHECK(sim, a->owner == sim->retried->action.owner &&
				   a->shard == sim->retried->action.shard);
		CHECK(sim,
			a->token == sim->retried->action.token && a->to == sim->retried->action.to);
		return;
	}
	c->requested++;
	if (d->queue == 0)
		share_begun(sim, c->stream);
	share_charge(sim, c, TURN_ROW + (int64_t)a->tokens * c->ring.geometry.token_bytes);
	share_check(sim, c);
}

static void told_failed(struct sim *sim, struct client *c)
{
	CHECK(sim, c->state == FAILED && !c->told);
	c->told = true;
	sim->counts.failures++;
}

static void told_hostile(struct sim *sim, struct client *c)
{
	CHECK(sim, c->state == RUNNING && c->hostile && !c->told);
	c->told = true;
	sim->counts.hostile++;
}

/* Reads from stores may end at once, although the store hangs. */
static void cancel(struct sim *sim, const struct client *c)
{
	unsigned n = 0;

	CHECK(sim, c->state == LEAVING);
	for (unsigned i = 0; i < sim->reads; i++) {
		struct read *r = &sim->read[i];
		const struct dataset *d = r->action.owner;

		if (r->action.id != id_of(sim, c) || d->queue == 0)
			continue;
		CHECK(sim, !r->cancelled);
		r->cancelled = true;
		n++;
	}
	CHECK(sim, n > 0);
	sim->counts.cancelled += n;
}

static void perform(struct sim *sim, const struct engine_action *a)
{
	struct client *c = client_of(sim, a->id);

	trace(sim, 100 + a->type, a->id, a->type == ENGINE_READ ? a->token : 0);
	switch (a->type) {
	case ENGINE_READ:
		begin_read(sim, a);
		break;
	case ENGINE_CANCEL:
		cancel(sim, c);
		break;
	case ENGINE_WAKE:
		CHECK(sim, c->state == RUNNING);
		c->wake = true;
		share_charge(sim, c, TURN_WAKE);
		break;
	case ENGINE_FAILED:
		told_failed(sim, c);
		break;
	case ENGINE_HOSTILE:
		told_hostile(sim, c);
		break;
	case ENGINE_GONE:
		CHECK(sim, c->state == LEAVING && a->feed == c->feed);
		client_bury(sim, c);
		break;
	}
}

void step(struct sim *sim, struct engine_event event)
{
	trace(sim, event.type, event.id, event.tag);
	do {
		sim->out.count = 0;
		engine_step(sim->engine, &event, &sim->out);
		for (unsigned i = 0; i < sim->out.count; i++)
			perform(sim, &sim->out.action[i]);
		event = (struct engine_event){.type = ENGINE_PUMP, .id = UINT32_MAX};
	} while (sim->out.more);
}
