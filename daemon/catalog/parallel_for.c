#include "daemon/catalog/parallel_for.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

struct parallel_loop {
	bool (*work)(const struct parallel *p, struct fault *fault);
	void *context;
	_Atomic unsigned threads;
	_Atomic uint64_t next, failed; /* failed: the least i that failed so far, or n */
	pthread_mutex_t lock;	       /* over changes of `failed`, and its fault */
	struct fault *fault;
};

static void *run(void *argument)
{
	struct parallel_loop *loop = argument;
	struct parallel p = {.context = loop->context, .thread = loop->threads++};
	struct fault fault;

	/* At failed and above: other threads have taken all smaller i. */
	while ((p.i = loop->next++) < loop->failed) {
		if (loop->work(&p, &fault))
			continue;
		pthread_mutex_lock(&loop->lock);
		if (p.i < loop->failed) {
			loop->failed = p.i;
			*loop->fault = fault;
		}
		pthread_mutex_unlock(&loop->lock);
	}
	return NULL;
}

uint64_t parallel_for(uint64_t n, unsigned threads,
	bool (*work)(const struct parallel *p, struct fault *fault), void *context,
	struct fault *fault)
{
	struct parallel_loop loop = {.work = work,
		.context = context,
		.failed = n,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.fault = fault};
	pthread_t thread[PARALLEL_THREADS];
	sigset_t all, before;
	unsigned others = 0;

	assert(threads <= PARALLEL_THREADS);
	threads = threads < n ? threads : (unsigned)n;
	sigfillset(&all); /* signals belong to the caller's threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* If no thread can be created, this one does all the work. */
	while (others + 1 < threads && pthread_create(&thread[others], NULL, run, &loop) == 0)
		others++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	run(&loop);
	while (others > 0)
		pthread_join(thread[--others], NULL);
	assert(loop.failed <= n);
	return loop.failed;
}
