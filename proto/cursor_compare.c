/* Comparing cursors: with the stream as it is now, and across ranks. */
#include "proto/cursor.h"

#include "proto/cursor_private.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static bool same_number(struct fault *fault, const char *field, uint64_t mine, uint64_t now)
{
	return mine == now || fault_set(fault, FAULT_CURSOR, field,
				      "the cursor has %" PRIu64 ", the stream has %" PRIu64
				      "; restore the config, or use a cursor of this run",
				      mine, now);
}

static bool same_dataset(const struct cursor *c, uint32_t d, const struct cursor *now, uint32_t n,
	struct fault *fault)
{
	assert(d < c->datasets && n < now->datasets);
	const struct order_dataset *a = &c->order[d], *b = &now->order[n];
	const struct {
		const char *what;
		uint64_t mine, now;
	} fields[] = {
		{"windows", a->windows, b->windows},
		{"digest of its shards", c->dataset[d].digest, now->dataset[n].digest},
		{"shuffle", a->shuffle, b->shuffle},
		{"block", a->shuffle == ORDER_BLOCK ? a->block : 0,
			a->shuffle == ORDER_BLOCK ? b->block : 0},
		{"group", a->shuffle == ORDER_BLOCK ? a->group : 0,
			a->shuffle == ORDER_BLOCK ? b->group : 0},
		{"slide", a->slide, b->slide},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (fields[i].mine != fields[i].now)
			return cursor_refuse_dataset(fault, c->dataset[d].name, fields[i].what,
				"the cursor has %" PRIu64 ", the stream has %" PRIu64
				": its shards or settings changed; restore them, and add new "
				"shards as a new dataset",
				fields[i].mine, fields[i].now);
	return true;
}

/* Does the cursor give dataset @d any weight, now or later? */
static bool serves(const struct cursor *c, uint32_t d)
{
	for (uint32_t i = 0; i < c->segments; i++)
		if (d < c->segment[i]->datasets && c->segment[i]->units[d] > 0)
			return true;
	return false;
}

bool cursor_belongs(const struct cursor *c, const struct cursor *now, struct fault *fault)
{
	if (strcmp(c->stream, now->stream) != 0)
		return fault_set(fault, FAULT_CURSOR, "stream",
			"the cursor belongs to stream %s, not to %s", c->stream, now->stream);
	if (!same_number(fault, "seed", c->seed, now->seed) ||
		!same_number(fault, "seq_len", c->seq_len, now->seq_len) ||
		!same_number(fault, "extra", c->extra, now->extra) ||
		!same_number(fault, "stride", c->stride, now->stride) ||
		!same_number(fault, "epochs", c->epochs, now->epochs) ||
		!same_number(fault, "samples", c->samples, now->samples))
		return false;
	for (uint32_t d = 0; d < c->datasets; d++) {
		int n = cursor_find(now, c->dataset[d].name);

		if (n >= 0) {
			if (!same_dataset(c, d, now, (uint32_t)n, fault))
				return false;
		} else if (serves(c, d)) {
			return cursor_refuse_dataset(fault, c->dataset[d].name, "name",
				"the cursor serves it, but the stream no longer has it; restore it "
				"in the config");
		}
	}
	/* With epochs the datasets determine the end of the stream: none may be added or removed.
	 */
	if (c->epochs && !same_number(fault, "datasets", c->datasets, now->datasets))
		return false;
	return true;
}

uint64_t cursor_fingerprint(const struct cursor *cursor, uint64_t world, uint64_t micro_batch)
{
	assert(cursor->segments > 0 && world > 0 && micro_batch > 0);
	uint64_t h = order_derive(ORDER_VERSION, cursor->seed, cursor->seq_len, cursor->extra,
		cursor->stride, cursor->epochs, cursor->samples, cursor->next, world, micro_batch,
		order_name_hash(cursor->stream, strlen(cursor->stream)));

	for (uint32_t d = 0; d < cursor->datasets; d++) {
		const struct order_dataset *o = &cursor->order[d];

		h = order_derive(h, o->name_hash, o->windows, cursor->dataset[d].digest, o->shuffle,
			o->block, o->group, o->slide);
		if (cursor->dataset[d].max_epochs)
			h = order_derive(h, d, cursor->dataset[d].max_epochs);
	}
	for (uint32_t i = 0; i < cursor->segments; i++) {
		const struct order_segment *s = cursor->segment[i];

		h = order_derive(h, s->start, s->datasets);
		h = order_derive_n(h, s->units, s->datasets);
		h = order_derive_n(h, s->base, s->datasets);
		h = order_derive_n(h, s->phase, s->padded);
	}
	return h;
}
