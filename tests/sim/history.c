/* Positions that a job's model was trained on: each once, over all restarts. */
#include "tests/sim/job.h"

void history_clear(struct history *h, uint64_t base)
{
	__real_free(h->seen);
	*h = (struct history){.base = base};
}

static uint8_t *at(struct history *h, uint64_t position)
{
	CHECK(position >= h->base && position - h->base < (UINT64_C(1) << 26));
	uint64_t i = position - h->base;

	if (i >= h->room) {
		uint64_t room = 2 * i + 1024;
		uint8_t *more = __real_calloc(1, room);

		CHECK(more);
		if (h->seen)
			memcpy(more, h->seen, h->room);
		__real_free(h->seen);
		h->seen = more;
		h->room = room;
	}
	return &h->seen[i];
}

void history_take(struct history *h, uint64_t position)
{
	uint8_t *seen = at(h, position);

	CHECK(*seen == 0);
	*seen = 1;
}

void history_skip(struct history *h, uint64_t from, uint64_t to)
{
	for (; from < to; from++) {
		uint8_t *seen = at(h, from);

		CHECK(*seen == 0);
		*seen = 2;
	}
}

void history_back(struct history *h, uint64_t position)
{
	CHECK(position >= h->base);
	if (position - h->base < h->room)
		memset(h->seen + (position - h->base), 0, h->room - (position - h->base));
	if (position - h->base < h->checked)
		h->checked = position - h->base;
}

void history_check(struct history *h, uint64_t to)
{
	CHECK(to >= h->base && to - h->base <= h->room);
	for (; h->checked < to - h->base; h->checked++)
		CHECK(h->seen[h->checked] != 0);
}
