/*
 * Where io_uring is forbidden. What the page cache holds is read by the data thread itself, with RWF_NOWAIT,
 * which for shards of a few GB is nearly everything; the rest, and all opening, goes to a small pool of
 * threads, so that a file system that hangs holds up those and nobody else. A read that RWF_NOWAIT refuses
 * has started its read-ahead all the same.
 */
#include "disk_ops.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 64 * 1024 };

struct line {
	struct disk_work *first, **end;
	unsigned count;
};

struct pool {
	struct line submitted, hot; /* the data thread's own: not committed yet, and done by itself */
	pthread_mutex_t mutex;	    /* of all below */
	pthread_cond_t work, news;
	struct line todo, done;
	unsigned idle; /* threads that wait for work */
	bool waits;    /* the data thread waits for news */
	bool kicked, stop;
	unsigned threads;
	pthread_t thread[DISK_THREADS];
};

static void line_clear(struct line *line)
{
	line->first = NULL;
	line->end = &line->first;
	line->count = 0;
}

static void line_add(struct line *line, struct disk_work *work)
{
	work->next = NULL;
	*line->end = work;
	line->end = &work->next;
	line->count++;
}

static struct disk_work *line_take(struct line *line)
{
	struct disk_work *work = line->first;

	if (!work)
		return NULL;
	line->first = work->next;
	if (!line->first)
		line->end = &line->first;
	line->count--;
	return work;
}

static void line_move(struct line *to, struct line *from)
{
	if (!from->first)
		return;
	*to->end = from->first;
	to->end = from->end;
	to->count += from->count;
	line_clear(from);
}

/* ---- the threads of the pool ---- */

static int64_t opening_do(struct disk_opening *opening)
{
	if (opening->old >= 0)
		close(opening->old);
	opening->old = -1;

	int fd = open(opening->path, opening->flags);

	if (fd < 0)
		return -errno;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &opening->found) < 0) {
		int error = errno;

		close(fd);
		return -error;
	}
	return fd;
}

static int64_t work_do(struct disk_work *work)
{
	if (work->opening)
		return opening_do(work->opening);
	ssize_t n = pread(work->fd, work->to, work->bytes, (off_t)work->at);

	return n < 0 ? -errno : n;
}

static struct disk_work *pool_next(struct pool *pool)
{
	struct disk_work *work;

	while (!(work = line_take(&pool->todo)) && !pool->stop) {
		pool->idle++;
		pthread_cond_wait(&pool->work, &pool->mutex);
		pool->idle--;
	}
	return work;
}

static void *pool_thread(void *argument)
{
	struct pool *pool = argument;
	struct disk_work *work;

	pthread_mutex_lock(&pool->mutex);
	while ((work = pool_next(pool))) {
		pthread_mutex_unlock(&pool->mutex);
		work->result = work_do(work);
		pthread_mutex_lock(&pool->mutex);
		line_add(&pool->done, work);
		if (pool->waits)
			pthread_cond_signal(&pool->news);
	}
	pthread_mutex_unlock(&pool->mutex);
	return NULL;
}

/* ---- the data thread's side ---- */

/* True: done, from the page cache. */
static bool read_cached(struct disk_work *work)
{
	if (work->opening || !*work->nowait)
		return false;
	struct iovec to = {.iov_base = work->to, .iov_len = work->bytes};
	ssize_t n = preadv2(work->fd, &to, 1, (off_t)work->at, RWF_NOWAIT);

	if (n < 0) {
		/* EOPNOTSUPP mostly. A real error comes again, in the pool. */
		*work->nowait = errno == EAGAIN || errno == EINTR;
		return false;
	}
	work->result = n;
	return true;
}

static void pread_submit(void *backend, struct disk_work *work)
{
	struct pool *pool = backend;

	line_add(&pool->submitted, work);
}

static void pread_commit(void *backend)
{
	struct pool *pool = backend;
	struct line cold;
	struct disk_work *work;

	line_clear(&cold);
	while ((work = line_take(&pool->submitted)))
		line_add(read_cached(work) ? &pool->hot : &cold, work);
	if (!cold.first)
		return;
	pthread_mutex_lock(&pool->mutex);
	unsigned wake = cold.count < pool->idle ? cold.count : pool->idle;

	line_move(&pool->todo, &cold);
	while (wake-- > 0)
		pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->mutex);
}

static void pool_wait(struct pool *pool, int64_t deadline_ns)
{
	struct timespec until = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};

	pool->waits = true;
	while (!pool->done.first && !pool->kicked)
		if (pthread_cond_timedwait(&pool->news, &pool->mutex, &until) == ETIMEDOUT)
			break;
	pool->waits = false;
}

static unsigned pread_reap(
	void *backend, struct disk_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	struct pool *pool = backend;
	unsigned count = 0;

	pthread_mutex_lock(&pool->mutex);
	if (!pool->hot.first && deadline_ns > 0)
		pool_wait(pool, deadline_ns);
	line_move(&pool->hot, &pool->done);
	*kicked = pool->kicked;
	pool->kicked = false;
	pthread_mutex_unlock(&pool->mutex);
	while (count < max && (done[count] = line_take(&pool->hot)))
		count++;
	return count;
}

static void pread_kick(void *backend)
{
	struct pool *pool = backend;

	pthread_mutex_lock(&pool->mutex);
	pool->kicked = true;
	if (pool->waits)
		pthread_cond_signal(&pool->news);
	pthread_mutex_unlock(&pool->mutex);
}

static void pread_close(void *backend)
{
	struct pool *pool = backend;

	pthread_mutex_lock(&pool->mutex);
	pool->stop = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->mutex);
	for (unsigned i = 0; i < pool->threads; i++)
		pthread_join(pool->thread[i], NULL);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->news);
	pthread_mutex_destroy(&pool->mutex);
	free(pool);
}

/* Signals are for the threads that expect them: these inherit a mask that blocks all. */
static int pool_start(struct pool *pool)
{
	pthread_attr_t attr;
	sigset_t all, before;
	int error = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	while (pool->threads < DISK_THREADS && !error) {
		error = pthread_create(&pool->thread[pool->threads], &attr, pool_thread, pool);
		if (!error)
			pool->threads++;
	}
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

static void *pread_open(unsigned works, const char **what, int *error)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t clock;

	(void)works; /* the lines have no bound of their own */
	*what = "memory";
	*error = ENOMEM;
	if (!pool)
		return NULL;
	line_clear(&pool->submitted);
	line_clear(&pool->hot);
	line_clear(&pool->todo);
	line_clear(&pool->done);
	pthread_mutex_init(&pool->mutex, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->news, &clock);
	pthread_condattr_destroy(&clock);
	*what = "starting its threads";
	*error = pool_start(pool);
	if (*error) {
		pread_close(pool);
		return NULL;
	}
	return pool;
}

const struct disk_ops disk_pread = {
	.name = "pread",
	.open = pread_open,
	.close = pread_close,
	.submit = pread_submit,
	.commit = pread_commit,
	.reap = pread_reap,
	.kick = pread_kick,
};
