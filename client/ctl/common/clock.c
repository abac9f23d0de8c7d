#include "client/ctl/common/clock.h"

#include <time.h>

uint64_t ctl_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t ctl_clock_ms(void)
{
	return ctl_clock_ns() / 1000000;
}
