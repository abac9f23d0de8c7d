#include "daemon/store/pace.h"

#include <assert.h>

/* ---- the limit ---- */

static unsigned less(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

struct limit limit_new(unsigned most)
{
	assert(most >= 1);
	return (struct limit){.now = less(LIMIT_START, most), .most = most};
}

void limit_answered(struct limit *limit, unsigned in_flight)
{
	assert(limit->now >= 1 && limit->now <= limit->most);
	if (limit->now == limit->most || 2 * in_flight < limit->now)
		return;
	limit->answers++;
	if (limit->halved && limit->answers < limit->now)
		return;
	limit->now++;
	limit->answers = 0;
}

void limit_overload(struct limit *limit, int64_t now_ms)
{
	if (limit->halved && now_ms - limit->halved_ms < LIMIT_HALVED_MS)
		return;
	unsigned least = less(LIMIT_LEAST, limit->most), half = limit->now / 2;

	limit->now = half > least ? half : least;
	limit->answers = 0;
	limit->halved = true;
	limit->halved_ms = now_ms;
}

/* ---- retries ---- */

/* A random number below @most. */
static int64_t part_of(int64_t most, uint32_t random)
{
	return (int64_t)(((uint64_t)most * random) >> 32);
}

/* Full jitter: any time up to a bound that doubles. */
static int64_t pace(struct tries *tries, const struct retry_state *state)
{
	int64_t most = RETRY_MOST_MS, least = (int64_t)state->retry_after_s * 1000;

	if (tries->paced < 8 && (RETRY_FIRST_MS << tries->paced) < RETRY_MOST_MS)
		most = RETRY_FIRST_MS << tries->paced;
	tries->paced++;
	int64_t wait = part_of(most, state->random);

	return wait > least ? wait : least;
}

static int64_t pace_other(struct tries *tries, const struct retry_state *state)
{
	if (!state->listed || ++tries->other >= RETRY_OTHER)
		return RETRY_STOP;
	return RETRY_OTHER_MS - part_of(RETRY_OTHER_MS / 4, state->random);
}

int64_t retry_after(
	struct tries *tries, const struct verdict *verdict, const struct retry_state *state)
{
	if (verdict->kind != VERDICT_TORN)
		tries->torn = 0;
	/* Those before and after an outage are not in a row. */
	if (verdict->kind != VERDICT_OTHER && verdict->kind != VERDICT_DENIED)
		tries->other = 0;
	switch (verdict->kind) {
	case VERDICT_TORN:
		return ++tries->torn < RETRY_TORN ? 0 : pace(tries, state);
	case VERDICT_CLOCK:
		return tries->clock++ == 0 ? 0 : pace(tries, state);
	case VERDICT_DENIED:
		if (!state->proven)
			return RETRY_STOP;
		return state->others ? pace_other(tries, state) : pace(tries, state);
	case VERDICT_OTHER:
		return pace_other(tries, state);
	case VERDICT_UNTRUSTED:
		return state->proven ? pace(tries, state) : RETRY_STOP;
	case VERDICT_FINAL:
		return RETRY_STOP;
	case VERDICT_GOOD:
	case VERDICT_HEALS:
	case VERDICT_EXPIRED:
		break;
	}
	return pace(tries, state);
}

int64_t retry_first_byte_ms(const struct tries *tries)
{
	int64_t ms = RETRY_FIRST_BYTE_MS;

	for (unsigned i = 0; i < tries->timeouts && ms < RETRY_FIRST_BYTE_MOST_MS; i++)
		ms *= 2;
	return ms < RETRY_FIRST_BYTE_MOST_MS ? ms : RETRY_FIRST_BYTE_MOST_MS;
}
