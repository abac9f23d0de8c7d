#include "daemon/catalog/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum {
	CREW = 16,     /* reads that a disk is asked for at once, rather than processors */
	WORTH_IT = 64, /* a thread for so many things */
};

struct crew {
	bool (*work)(void *context, uint64_t i);
	void *context;
	_Atomic uint64_t next, failed; /* the least that failed so far, or n */
};

static void *run(void *argument)
{
	struct crew *c = argument;

	for (;;) {
		uint64_t i = atomic_fetch_add(&c->next, 1), failed = atomic_load(&c->failed);

		if (i >= failed) /* what lies before it is in somebody's hands */
			return NULL;
		if (c->work(c->context, i))
			continue;
		while (i < failed && !atomic_compare_exchange_weak(&c->failed, &failed, i))
			;
	}
}

uint64_t crew_each(uint64_t n, bool (*work)(void *context, uint64_t i), void *context)
{
	struct crew c = {.work = work, .context = context, .failed = n};
	pthread_t thread[CREW];
	sigset_t all, before;
	unsigned threads = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the others' */
	/* Where no thread can be had, there is always this one. */
	while (threads < CREW - 1 && n / WORTH_IT > threads + 1 &&
		pthread_create(&thread[threads], NULL, run, &c) == 0)
		threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	run(&c);
	while (threads > 0)
		pthread_join(thread[--threads], NULL);
	return c.failed;
}
