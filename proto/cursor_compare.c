/* Comparing cursors: with the stream as it is now, and across ranks. */
#include "proto/cursor.h"

#include "proto/cursor_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool same_number(struct fault *fault, const char *field, uint64_t mine, uint64_t now)
{
	return mine == now || fault_set(fault, FAULT_CURSOR, field,
				      "the cursor has %" PRIu64 ", the stream has %" PRIu64
				      "; restore the config, or use a cursor of this run",
				      mine, now);
}

/* A finite run was laid out for its end: a longer one is another run. */
static bool same_end(struct fault *fault, const char *field, uint64_t mine, uint64_t now)
{
	return mine == now ||
	       fault_set(fault, FAULT_CURSOR, field,
		       "the run began with %s: %" PRIu64 ", and the stream now has %" PRIu64
		       " (0: not set); its order depends on that. Restore it to end this run; to "
		       "train on, add a stream with another seed and begin it after that end",
		       field, mine, now);
}

static bool differs(struct fault *fault, const char *dataset, const char *what, const char *mine,
	const char *now)
{
	return cursor_refuse_dataset(fault, dataset, what,
		"the cursor has %s, the stream has %s: its shards or settings changed; restore "
		"them, and add new shards as a new dataset",
		mine, now);
}

static bool same_dataset(const struct cursor *c, uint32_t d, const struct cursor *now, uint32_t n,
	struct fault *fault)
{
	assert(d < c->datasets && n < now->datasets);
	const struct order_dataset *a = &c->order[d], *b = &now->order[n];
	const char *name = c->dataset[d].name;
	bool blocks = a->shuffle == ORDER_BLOCK && b->shuffle == ORDER_BLOCK;
	const struct {
		const char *what;
		uint64_t mine, now;
	} numbers[] = {
		{"windows", a->windows, b->windows},
		{"block", blocks ? a->block : 0, blocks ? b->block : 0},
		{"group", blocks ? a->group : 0, blocks ? b->group : 0},
	};
	const struct cursor_dataset *was = &c->dataset[d], *has = &now->dataset[n];
	char mine[ORDER_PART_BYTES], is[ORDER_PART_BYTES];

	if (was->lo != has->lo || was->hi != has->hi)
		return differs(fault, name, "part", order_part_text(was->lo, was->hi, mine),
			order_part_text(has->lo, has->hi, is));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (numbers[i].mine == numbers[i].now)
			continue;
		snprintf(mine, sizeof(mine), "%" PRIu64, numbers[i].mine);
		snprintf(is, sizeof(is), "%" PRIu64, numbers[i].now);
		return differs(fault, name, numbers[i].what, mine, is);
	}
	if (c->dataset[d].digest != now->dataset[n].digest)
		return cursor_refuse_dataset(fault, name, "shards",
			"their names or lengths are not those that the run began with; restore "
			"them, and add new shards as a new dataset");
	if (a->shuffle != b->shuffle)
		return differs(fault, name, "shuffle", order_shuffles[a->shuffle],
			order_shuffles[b->shuffle]);
	return a->slide == b->slide || differs(fault, name, "slide", a->slide ? "true" : "false",
					       b->slide ? "true" : "false");
}

/* Does the cursor give dataset @d any weight, now or later? */
static bool serves(const struct cursor *c, uint32_t d)
{
	for (uint32_t i = cursor_past(c); i < c->segments; i++)
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
		!same_end(fault, "epochs", c->epochs, now->epochs) ||
		!same_end(fault, "samples", c->samples, now->samples))
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
	/* With epochs the datasets determine the stream's end: none may be added or removed. */
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
	for (uint32_t i = cursor_past(cursor); i < cursor->segments; i++) {
		const struct order_segment *s = cursor->segment[i];

		h = order_derive(h, s->start, s->datasets);
		h = order_derive_n(h, s->units, s->datasets);
		h = order_derive_n(h, s->base, s->datasets);
		h = order_derive_n(h, s->phase, s->padded);
	}
	return h;
}
