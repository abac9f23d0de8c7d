#include "client/lib/wait.h"

#include <poll.h>
#include <time.h>

enum { IDLE_MS = 100 }; /* between two calls of idle() */

int64_t wait_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int wait_ready(struct tokend *t, int fd, short events, int64_t until)
{
	const int64_t longest = (t->call.idle ? IDLE_MS : WAIT_SLICE_MS) * WAIT_MS;
	struct pollfd p = {fd, events, 0};

	for (;;) {
		int64_t left = until - wait_now(),
			slice = left < 0 ? 0 : wait_earlier(left, longest);
		const struct timespec time = {slice / (1000 * WAIT_MS), slice % (1000 * WAIT_MS)};
		int n = ppoll(&p, 1, &time, NULL);

		if (n > 0)
			return 1;
		if (left <= longest && n == 0)
			return 0;
		if (t->call.idle && t->call.idle(t->call.context))
			return handle_fail(t, TOKEND_EAGAIN, "", "interrupted");
	}
}
