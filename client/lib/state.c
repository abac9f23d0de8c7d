/* Shape, counters, names and annotations of a handle. */
#include "client/lib/handle.h"
#include "client/lib/map.h"
#include "proto/version.h"

#include <string.h>

void tokend_shape(const struct tokend *t, struct tokend_shape *shape)
{
	const struct ring_geometry *g = &t->mapping->ring.geometry;

	*shape = (struct tokend_shape){
		.rows = g->rows,
		.window_tokens = g->window_tokens,
		.token_bytes = g->token_bytes,
		.slots = g->slots,
		.seq_len = t->origin.seq_len,
		.rank = t->rank,
		.world = t->world,
		.batches = t->batches,
		.data_bytes = g->data_bytes,
		.lost_wakes = t->lost_wakes,
		.reattached = t->reattached,
		.waited_ns = t->waited_ns,
	};
}

const char *tokend_dataset(const struct tokend *t, uint32_t dataset)
{
	return dataset < t->origin.datasets ? t->origin.dataset[dataset].name : NULL;
}

const char *tokend_run(const struct tokend *t)
{
	return t->run;
}

const char *tokend_socket(const struct tokend *t)
{
	return t->socket;
}

const char *tokend_config(const struct tokend *t)
{
	return t->config;
}

const char *tokend_stream_name(const struct tokend *t)
{
	return t->stream;
}

unsigned tokend_annotations(const struct tokend *t)
{
	const struct ring_geometry *g = &t->mapping->ring.geometry;

	return (g->documents ? TOKEND_DOCUMENTS : 0u) | (g->loss_mask ? TOKEND_LOSS_MASK : 0u);
}

int tokend_memory(struct tokend *t, void **base, uint64_t *bytes,
	void (*gone)(void *context, void *base, uint64_t bytes), void *context)
{
	struct mapping *m = t->mapping;

	if (handle_forked(t))
		return TOKEND_EFORKED;
	if (!gone)
		return handle_fail(t, TOKEND_EARGUMENT, "gone",
			"is NULL; pass a function that unregisters the memory");
	*base = m->data;
	*bytes = m->ring.geometry.control_at;
	if (m->gone)
		return 0;
	m->gone = gone;
	m->context = context;
	return 1;
}

uint64_t tokend_held(const struct tokend *t)
{
	const struct release_queue *q = &t->mapping->queue;

	return handle_forked(t) ? 0 : q->taken - q->released;
}

int tokend_forked(const struct tokend *t)
{
	return handle_forked(t);
}

int tokend_lost(const struct tokend *t)
{
	return t->fd < 0;
}

uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value)
{
	return order_derive(seed, tag, value);
}

const char *tokend_version(void)
{
	return TOKEND_VERSION;
}
