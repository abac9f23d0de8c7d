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

struct pool {
	int news_fd;
	sem_t works;	       /* in `todo`; one for each thread, to stop */
	pthread_mutex_t mutex; /* of all members below; held for a moment only */
	struct works todo, done;
	unsigned idle; /* threads without a work */
	bool kicked;
	unsigned threads, most;
	pthread_t thread[];
};

/* ---- lists ---- */

void works_clear(struct works *works)
{
	works->first = NULL;
	works->end = &works->first;
	works->count = 0;
}

void works_add(struct works *works, struct io_work *work)
{
	assert(work && works->end);
	work->next = NULL;
	*works->end = work;
	works->end = &work->next;
	works->count++;
}

struct io_work *works_take(struct works *works)
{
	struct io_work *work = works->first;

	assert((works->count == 0) == !work);
	if (!work)
		return NULL;
	works->first = work->next;
	if (!works->first)
		works->end = &works->first;
	works->count--;
	return work;
}

static void works_move(struct works *to, struct works *from)
{
	assert(to != from);
	if (!from->first)
		return;
	*to->end = from->first;
	to->end = from->end;
	to->count += from->count;
	works_clear(from);
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

/* The thread inherits a mask that blocks all signals. False: @fault. */
static bool pool_add_thread(struct pool *pool, struct fault *fault)
{
	pthread_attr_t attr;
	sigset_t all, before;

	assert(pool->threads < pool->most);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int error = pthread_create(&pool->thread[pool->threads], &attr, pool_thread, pool);

	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return io_fault(fault, error, "pthread_create");
	pool->threads++;
	pool->idle++;
	return true;
}

/* Adds a thread if works wait. It begins one, and adds another thread for the next: so new threads
 * begin works in their order. If that fails, the threads that there are do the works in turn. */
static void pool_grow(struct pool *pool)
{
	struct fault unused;

	if (pool->todo.count > pool->idle && pool->threads < pool->most)
		pool_add_thread(pool, &unused);
}

static void *pool_thread(void *argument)
{
	struct pool *pool = argument;
	struct io_work *work;

	pthread_setname_np(pthread_self(), "tokend-pool");
	for (;;) {
		while (sem_wait(&pool->works) !=
			0) /* a thread that ends early is missed for ever */
			continue;
		pthread_mutex_lock(&pool->mutex);
		work = works_take(&pool->todo);
		pool->idle -= work != NULL;
		pool_grow(pool);
		pthread_mutex_unlock(&pool->mutex);
		if (!work) /* stop */
			return NULL;

		work->result = work_do(work);

		pthread_mutex_lock(&pool->mutex);
		bool news = !pool->done.first; /* otherwise it was announced already */

		pool->idle++;
		works_add(&pool->done, work);
		pthread_mutex_unlock(&pool->mutex);
		if (news)
			eventfd_write(pool->news_fd, 1);
	}
}

/* ---- the data thread's side ---- */

void pool_give(struct pool *pool, struct works *works)
{
	unsigned count = works->count;

	if (count == 0)
		return;
	pthread_mutex_lock(&pool->mutex);
	works_move(&pool->todo, works);
	assert(pool->idle <= pool->threads && pool->todo.count <= pool->most);
	pool_grow(pool);
	pthread_mutex_unlock(&pool->mutex);
	while (count-- > 0)
		sem_post(&pool->works);
}

bool pool_take(struct pool *pool, struct works *done)
{
	pthread_mutex_lock(&pool->mutex);
	bool kicked = pool->kicked;

	pool->kicked = false;
	works_move(done, &pool->done);
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
	assert(!pool->todo.first);
	for (unsigned i = 0; i < pool->threads; i++)
		sem_post(&pool->works);
	for (unsigned i = 0; i < pool->threads; i++)
		pthread_join(pool->thread[i], NULL);
	assert(pool->idle == pool->threads && !pool->done.first);
	sem_destroy(&pool->works);
	pthread_mutex_destroy(&pool->mutex);
	close(pool->news_fd);
	free(pool);
}

struct pool *pool_open(unsigned most, struct fault *fault)
{
	struct pool *pool = calloc(1, sizeof(*pool) + most * sizeof(pool->thread[0]));

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
	works_clear(&pool->todo);
	works_clear(&pool->done);
	pthread_mutex_init(&pool->mutex, NULL);
	sem_init(&pool->works, 0, 0);
	if (pool_add_thread(pool, fault))
		return pool;
	pool_close(pool);
	return NULL;
}
