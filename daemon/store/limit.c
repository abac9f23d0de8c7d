#include "daemon/store/limit.h"

#include <assert.h>

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
