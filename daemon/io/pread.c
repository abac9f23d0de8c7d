/*
 * The backend for systems that forbid io_uring. The data thread itself reads bytes that are in the
 * page cache, with RWF_NOWAIT; for shards of a few GB these are nearly all bytes. Other reads go to
 * the pool. A read that RWF_NOWAIT refuses has already started its read-ahead.
 */
#include "daemon/io/pool.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>

struct pread {
	struct pool *pool;
	struct works submitted;
	struct works done;
};

/* True: it was read, from the page cache. After an error the pool tries again and reports it. */
static bool read_cached(struct io_work *work)
{
	/* With O_DIRECT, RWF_NOWAIT waits for the device. */
	if (work->call || !work->nowait || work->direct)
		return false;
	assert(work->fd >= 0 && work->bytes > 0);
	struct iovec to = {.iov_base = work->to, .iov_len = work->bytes};

	work->result = preadv2(work->fd, &to, 1, (off_t)work->at, RWF_NOWAIT);
	return work->result >= 0;
}

static void pread_submit(void *backend, struct io_work *work)
{
	struct pread *p = backend;

	works_add(&p->submitted, work);
}

static void pread_commit(void *backend)
{
	struct pread *p = backend;
	struct works cold;
	struct io_work *work;

	works_clear(&cold);
	while ((work = works_take(&p->submitted)))
		works_add(read_cached(work) ? &p->done : &cold, work);
	pool_give(p->pool, &cold);
}

/* Waits until the news descriptor is written to, or until @deadline_ns. */
static void news_wait(int fd, int64_t deadline_ns)
{
	struct pollfd news = {.fd = fd, .events = POLLIN};
	int64_t left_ns = deadline_ns - io_now_ns();
	eventfd_t count;

	if (left_ns <= 0)
		return;
	struct timespec wait = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};

	if (ppoll(&news, 1, &wait, NULL) > 0)
		eventfd_read(fd, &count);
}

static unsigned pread_reap(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	struct pread *p = backend;
	unsigned count = 0;

	assert(max > 0 && !p->submitted.first); /* commit() comes before a wait */

	*kicked = pool_take(p->pool, &p->done);
	if (!p->done.first && !*kicked && deadline_ns > 0) {
		news_wait(pool_news_fd(p->pool), deadline_ns);
		*kicked = pool_take(p->pool, &p->done);
	}
	while (count < max && (done[count] = works_take(&p->done)))
		count++;
	return count;
}

static bool pread_withdraw(void *backend, struct io_work *work)
{
	struct pread *p = backend;

	return works_remove(&p->submitted, work) || pool_withdraw(p->pool, work);
}

static void pread_slow(void *backend, struct pool_share *share, bool slow)
{
	struct pread *p = backend;

	pool_slow(p->pool, share, slow);
}

static void pread_kick(void *backend)
{
	struct pread *p = backend;

	pool_kick(p->pool);
}

static void pread_close(void *backend)
{
	struct pread *p = backend;

	assert(!p->submitted.first && !p->done.first);
	pool_close(p->pool);
	free(p);
}

static void *pread_open(unsigned works, struct fault *fault)
{
	struct pread *p = calloc(1, sizeof(*p));

	(void)works; /* the lists have no bound of their own */
	if (!p) {
		io_open_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	works_clear(&p->submitted);
	works_clear(&p->done);
	p->pool = pool_open(fault);
	if (!p->pool) {
		free(p);
		return NULL;
	}
	return p;
}

const struct io_ops pread_ops = {
	.name = "pread",
	.open = pread_open,
	.close = pread_close,
	.submit = pread_submit,
	.commit = pread_commit,
	.reap = pread_reap,
	.kick = pread_kick,
	.withdraw = pread_withdraw,
	.slow = pread_slow,
};
