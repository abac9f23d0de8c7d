#include "daemon/io/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024 }; /* formats parse and convert on it */

struct worker {
	struct pool *pool;
	pthread_t thread;
	sem_t wake;
	struct worker *next; /* idle */
};

struct pool {
	int news_fd;
	pthread_mutex_t mutex; /* of all members below; held for a moment only */
	struct works todo, done;
	struct worker *idle; /* the latest first: what it needs is still in a CPU's cache */
	bool waking;	     /* one was woken, or added, and has not looked at `todo` yet */
	bool closing, kicked;
	unsigned threads, most;
	struct worker worker[];
};

struct io_work *works_take(struct works *works)
{
	struct io_work *work = STAILQ_FIRST(works);

	if (work)
		STAILQ_REMOVE_HEAD(works, next);
	return work;
}

/* ---- the threads ---- */

static int64_t work_do(struct io_work *work)
{
	if (work->call)
		return work->call(work);
	assert(work->fd >= 0);
	ssize_t n = preadv(work->fd, work->to, 2, (off_t)work->at);

	return n < 0 ? -errno : n;
}

static void *pool_thread(void *argument);

/* The thread inherits a mask that blocks all signals. Returns an errno, or 0. */
static int pool_add_thread(struct pool *pool)
{
	struct worker *worker = &pool->worker[pool->threads];
	pthread_attr_t attr;
	sigset_t all, before;

	assert(pool->threads < pool->most);
	worker->pool = pool;
	sem_init(&worker->wake, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int error = pthread_create(&worker->thread, &attr, pool_thread, worker);

	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pool->threads += error == 0;
	return error;
}

/* Wakes or adds one thread if works wait; that one does the same when it has taken one. So works
 * begin in their order, and threads that end theirs meanwhile take the next one without being
 * woken. If no thread can be added, those that there are do the works in turn. */
static void pool_wake(struct pool *pool)
{
	struct worker *worker = pool->idle;

	if (STAILQ_EMPTY(&pool->todo) || pool->waking)
		return;
	if (worker) {
		pool->idle = worker->next;
		sem_post(&worker->wake);
	}
	pool->waking = worker || (pool->threads < pool->most && pool_add_thread(pool) == 0);
}

/* NULL: stop. */
static struct io_work *pool_next(struct pool *pool, struct worker *worker)
{
	pthread_mutex_lock(&pool->mutex);
	while (STAILQ_EMPTY(&pool->todo) && !pool->closing) {
		worker->next = pool->idle;
		pool->idle = worker;
		pthread_mutex_unlock(&pool->mutex);
		while (sem_wait(&worker->wake) != 0)
			continue;
		pthread_mutex_lock(&pool->mutex);
		pool->waking = false;
	}
	struct io_work *work = works_take(&pool->todo);

	pool_wake(pool);
	pthread_mutex_unlock(&pool->mutex);
	return work;
}

static void *pool_thread(void *argument)
{
	struct worker *worker = argument;
	struct pool *pool = worker->pool;
	struct io_work *work;

	pthread_setname_np(pthread_self(), "tokend-pool");
	pthread_mutex_lock(&pool->mutex);
	pool->waking = false;
	pthread_mutex_unlock(&pool->mutex);
	while ((work = pool_next(pool, worker))) {
		work->result = work_do(work);

		pthread_mutex_lock(&pool->mutex);
		bool news = STAILQ_EMPTY(&pool->done); /* otherwise it was announced already */

		STAILQ_INSERT_TAIL(&pool->done, work, next);
		pthread_mutex_unlock(&pool->mutex);
		if (news)
			eventfd_write(pool->news_fd, 1);
	}
	return NULL;
}

/* ---- the data thread's side ---- */

void pool_give(struct pool *pool, struct works *works)
{
	if (STAILQ_EMPTY(works))
		return;
	pthread_mutex_lock(&pool->mutex);
	STAILQ_CONCAT(&pool->todo, works);
	pool_wake(pool);
	pthread_mutex_unlock(&pool->mutex);
}

bool pool_take(struct pool *pool, struct works *done)
{
	pthread_mutex_lock(&pool->mutex);
	bool kicked = pool->kicked;

	pool->kicked = false;
	STAILQ_CONCAT(done, &pool->done);
	pthread_mutex_unlock(&pool->mutex);
	return kicked;
}

void pool_kick(struct pool *pool)
{
	pthread_mutex_lock(&pool->mutex);
	pool->kicked = true;
	eventfd_write(pool->news_fd, 1);
	pthread_mutex_unlock(&pool->mutex);
}

int pool_news_fd(const struct pool *pool)
{
	return pool->news_fd;
}

void pool_close(struct pool *pool)
{
	assert(STAILQ_EMPTY(&pool->todo));
	pthread_mutex_lock(&pool->mutex);
	pool->closing = true;
	pthread_mutex_unlock(&pool->mutex);
	for (unsigned i = 0; i < pool->threads; i++)
		sem_post(&pool->worker[i].wake);
	for (unsigned i = 0; i < pool->threads; i++)
		pthread_join(pool->worker[i].thread, NULL);
	assert(STAILQ_EMPTY(&pool->done));
	pthread_mutex_destroy(&pool->mutex);
	close(pool->news_fd);
	free(pool);
}

struct pool *pool_open(unsigned most, struct fault *fault)
{
	struct pool *pool = calloc(1, sizeof(*pool) + most * sizeof(pool->worker[0]));

	assert(most >= 1);
	if (!pool) {
		io_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	pool->news_fd = eventfd(0, EFD_CLOEXEC);
	if (pool->news_fd < 0) {
		io_fault(fault, errno, "eventfd");
		free(pool);
		return NULL;
	}
	pool->most = most;
	STAILQ_INIT(&pool->todo);
	STAILQ_INIT(&pool->done);
	pthread_mutex_init(&pool->mutex, NULL);
	int error = pool_add_thread(pool);

	if (error == 0)
		return pool;
	io_fault(fault, error, "pthread_create");
	pool_close(pool);
	return NULL;
}
