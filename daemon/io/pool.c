#include "daemon/io/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024 }; /* formats parse and convert on it */

struct pool {
	int news_fd;
	pthread_mutex_t mutex; /* of all members below */
	pthread_cond_t work;
	TAILQ_HEAD(, pool_share) turns; /* shares with something to do */
	struct works done;
	/* Threads at work: for slow shares, for those that are away, and for all others. */
	unsigned busy, slow_busy, away_busy;
	bool kicked, stop;
	unsigned threads; /* only the data thread adds some */
	pthread_t thread[POOL_MOST];
};

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

void works_move(struct works *to, struct works *from)
{
	assert(to != from);
	if (!from->first)
		return;
	*to->end = from->first;
	to->end = from->end;
	to->count += from->count;
	works_clear(from);
}

bool works_remove(struct works *works, struct io_work *work)
{
	struct io_work **at = &works->first;

	while (*at && *at != work)
		at = &(*at)->next;
	if (!*at)
		return false;
	*at = work->next;
	if (!*at)
		works->end = at;
	works->count--;
	return true;
}

/* ---- shares ---- */

void pool_share_init(struct pool_share *share, bool away)
{
	*share = (struct pool_share){.away = away};
	works_clear(&share->todo);
}

static unsigned less(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

static unsigned above(unsigned a, unsigned b)
{
	return a > b ? a - b : 0;
}

static unsigned *busy_of(struct pool *pool, const struct pool_share *share)
{
	return share->slow ? &pool->slow_busy : share->away ? &pool->away_busy : &pool->busy;
}

/* How many more works this share may begin, if no other share begins any. */
static unsigned share_room(const struct pool *pool, const struct pool_share *share)
{
	unsigned left =
		share->away ? above(POOL_AWAY, pool->away_busy) : above(POOL_ALL, pool->busy);

	if (share->slow)
		return above(POOL_SLOW, pool->slow_busy);
	return (above(left, share->busy) + 1) / 2; /* each makes one less of left */
}

/* How many more works all shares together may begin. */
static unsigned pool_room(const struct pool *pool)
{
	unsigned fast = 0, slow = 0, away = 0;
	const struct pool_share *share;

	TAILQ_FOREACH(share, &pool->turns, turn)
	*(share->slow	      ? &slow
		: share->away ? &away
			      : &fast) += less(share->todo.count, share_room(pool, share));
	return less(fast, above(POOL_ALL, pool->busy)) +
	       less(away, above(POOL_AWAY, pool->away_busy)) +
	       less(slow, above(POOL_SLOW, pool->slow_busy));
}

static void share_add(struct pool *pool, struct io_work *work)
{
	struct pool_share *share = work->share;

	assert(share);
	if (!share->todo.first)
		TAILQ_INSERT_TAIL(&pool->turns, share, turn);
	works_add(&share->todo, work);
}

/* Begins the next work. NULL: none may begin. */
static struct io_work *share_begin(struct pool *pool)
{
	struct pool_share *share;

	TAILQ_FOREACH(share, &pool->turns, turn)
	if (share_room(pool, share) > 0)
		break;
	if (!share)
		return NULL;
	struct io_work *work = works_take(&share->todo);

	assert(work && work->share == share); /* a share without works has no turn */
	TAILQ_REMOVE(&pool->turns, share, turn);
	if (share->todo.first)
		TAILQ_INSERT_TAIL(&pool->turns, share, turn);
	share->busy++;
	++*busy_of(pool, share);
	return work;
}

static void share_end(struct pool *pool, struct pool_share *share)
{
	assert(share->busy > 0 && *busy_of(pool, share) > 0);
	share->busy--;
	--*busy_of(pool, share);
}

/* ---- the threads ---- */

static int64_t work_do(struct io_work *work)
{
	if (work->call)
		return work->call(work);
	assert(work->fd >= 0 && work->to);
	ssize_t n = pread(work->fd, work->to, work->bytes, (off_t)work->at);

	return n < 0 ? -errno : n;
}

static struct io_work *pool_next(struct pool *pool)
{
	struct io_work *work;

	while (!(work = share_begin(pool)) && !pool->stop)
		pthread_cond_wait(&pool->work, &pool->mutex);
	return work;
}

static void *pool_thread(void *argument)
{
	struct pool *pool = argument;
	struct io_work *work;

	pthread_mutex_lock(&pool->mutex);
	while ((work = pool_next(pool))) {
		pthread_mutex_unlock(&pool->mutex);
		work_begun(work, true);
		work->result = work_do(work);
		pthread_mutex_lock(&pool->mutex);
		share_end(pool, work->share);
		bool first = !pool->done.first;

		works_add(&pool->done, work);
		if (first)
			eventfd_write(pool->news_fd, 1);
	}
	pthread_mutex_unlock(&pool->mutex);
	return NULL;
}

/* ---- the data thread's side ---- */

/* Called with the lock, by the data thread. */
static void pool_check(struct pool *pool)
{
	const struct pool_share *share;

	assert(pool->threads >= 1 && pool->threads <= POOL_MOST);
	assert(pool->busy + pool->slow_busy + pool->away_busy <= pool->threads);
	TAILQ_FOREACH(share, &pool->turns, turn)
	assert(share->todo.count > 0 && share->busy <= *busy_of(pool, share));
}

/* The thread inherits a mask that blocks all signals. False: @fault. */
static bool pool_add_thread(struct pool *pool, struct fault *fault)
{
	pthread_attr_t attr;
	sigset_t all, before;

	assert(pool->threads < POOL_MOST);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int error = pthread_create(&pool->thread[pool->threads], &attr, pool_thread, pool);

	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return io_open_fault(fault, error, "pthread_create");
	pool->threads++;
	return true;
}

/* Adds threads if there is more to begin than the present ones can. If that fails, the first thread
 * is enough. */
static void pool_grow(struct pool *pool, unsigned lacking)
{
	struct fault unused;

	while (lacking-- > 0 && pool->threads < POOL_MOST)
		if (!pool_add_thread(pool, &unused))
			return;
}

/* Wakes or adds threads for all works that may begin. Called with the lock; unlocks it. */
static void pool_start(struct pool *pool)
{
	pool_check(pool);
	unsigned count = pool_room(pool), busy = pool->busy + pool->slow_busy + pool->away_busy;

	/* All others look for work, or will do so when they run. */
	for (unsigned i = 0; i < count; i++)
		pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->mutex);
	pool_grow(pool, above(busy + count, pool->threads));
}

void pool_give(struct pool *pool, struct works *works)
{
	struct io_work *work;

	if (!works->first)
		return;
	pthread_mutex_lock(&pool->mutex);
	while ((work = works_take(works)))
		share_add(pool, work);
	pool_start(pool);
}

void pool_slow(struct pool *pool, struct pool_share *share, bool slow)
{
	assert(!share->away);
	pthread_mutex_lock(&pool->mutex);
	if (share->slow != slow) {
		assert((slow ? pool->busy : pool->slow_busy) >= share->busy);
		*(slow ? &pool->busy : &pool->slow_busy) -= share->busy;
		*(slow ? &pool->slow_busy : &pool->busy) += share->busy;
		share->slow = slow;
	}
	pool_start(pool);
}

bool pool_withdraw(struct pool *pool, struct io_work *work)
{
	struct pool_share *share = work->share;

	pthread_mutex_lock(&pool->mutex);
	bool removed = works_remove(&share->todo, work);

	if (removed && !share->todo.first)
		TAILQ_REMOVE(&pool->turns, share, turn);
	pthread_mutex_unlock(&pool->mutex);
	return removed;
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
	pthread_mutex_lock(&pool->mutex);
	assert(!pool->stop && TAILQ_EMPTY(&pool->turns));
	pool->stop = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->mutex);
	for (unsigned i = 0; i < pool->threads; i++)
		pthread_join(pool->thread[i], NULL);
	assert(pool->busy == 0 && pool->slow_busy == 0 && pool->away_busy == 0);
	assert(!pool->done.first);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->mutex);
	close(pool->news_fd);
	free(pool);
}

struct pool *pool_open(struct fault *fault)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool) {
		io_open_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	pool->news_fd = eventfd(0, EFD_CLOEXEC);
	if (pool->news_fd < 0) {
		io_open_fault(fault, errno, "eventfd");
		free(pool);
		return NULL;
	}
	TAILQ_INIT(&pool->turns);
	works_clear(&pool->done);
	pthread_mutex_init(&pool->mutex, NULL);
	pthread_cond_init(&pool->work, NULL);
	if (pool_add_thread(pool, fault))
		return pool;
	pool_close(pool);
	return NULL;
}
