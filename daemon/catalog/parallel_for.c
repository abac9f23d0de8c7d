#include "daemon/catalog/parallel_for.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum {
	THREADS = 16,	     /* concurrent disk reads, so more than there are processors */
	LEAST_A_THREAD = 64, /* least number of calls that justifies another thread */
};

struct loop {
	bool (*work)(void *context, uint64_t i);
	void *context;
	_Atomic uint64_t next, failed; /* failed: the least i that failed so far, or n */
};

static void *run(void *argument)
{
	struct loop *loop = argument;

	for (;;) {
		uint64_t i = atomic_fetch_add(&loop->next, 1), failed = atomic_load(&loop->failed);

		if (i >= failed) /* other threads have taken all smaller i */
			return NULL;
		if (loop->work(loop->context, i))
			continue;
		while (i < failed && !atomic_compare_exchange_weak(&loop->failed, &failed, i))
			;
	}
}

uint64_t parallel_for(uint64_t n, bool (*work)(void *context, uint64_t i), void *context)
{
	struct loop loop = {.work = work, .context = context, .failed = n};
	pthread_t thread[THREADS];
	sigset_t all, before;
	unsigned threads = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the caller's threads */
	/* If no thread can be created, this one does all the work. */
	while (threads < THREADS - 1 && n / LEAST_A_THREAD > threads + 1 &&
		pthread_create(&thread[threads], NULL, run, &loop) == 0)
		threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	run(&loop);
	while (threads > 0)
		pthread_join(thread[--threads], NULL);
	assert(loop.failed <= n);
	return loop.failed;
}
