/*
 * Where io_uring is forbidden. What the page cache holds is read by the data thread itself, with
 * RWF_NOWAIT, which for shards of a few GB is nearly everything; the rest goes to the pool. A read
 * that RWF_NOWAIT refuses has started its read-ahead all the same.
 */
#include "daemon/io/pool.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>

struct reader {
	struct pool *pool;
	struct works submitted;
	struct works done;
};

/* True: done, from the page cache. A real error comes again, in the pool. */
static bool read_cached(struct disk_work *work)
{
	/* With O_DIRECT, RWF_NOWAIT would not return before the device has answered. */
	if (work->opening || !work->nowait || work->direct)
		return false;
	struct iovec to = {.iov_base = work->to, .iov_len = work->bytes};

	work->result = preadv2(work->fd, &to, 1, (off_t)work->at, RWF_NOWAIT);
	return work->result >= 0;
}

static void pread_submit(void *backend, struct disk_work *work)
{
	struct reader *reader = backend;

	works_add(&reader->submitted, work);
}

static void pread_commit(void *backend)
{
	struct reader *reader = backend;
	struct works cold;
	struct disk_work *work;

	works_clear(&cold);
	while ((work = works_take(&reader->submitted)))
		works_add(read_cached(work) ? &reader->done : &cold, work);
	pool_give(reader->pool, &cold);
}

/* Until the news descriptor says something, or @deadline_ns. */
static void news_wait(int fd, int64_t deadline_ns)
{
	struct pollfd news = {.fd = fd, .events = POLLIN};
	struct timespec now;
	eventfd_t count;

	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t left_ns = deadline_ns - (now.tv_sec * INT64_C(1000000000) + now.tv_nsec);

	if (left_ns <= 0)
		return;
	struct timespec wait = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};

	if (ppoll(&news, 1, &wait, NULL) > 0)
		eventfd_read(fd, &count);
}

static unsigned pread_reap(
	void *backend, struct disk_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	struct reader *reader = backend;
	unsigned count = 0;

	*kicked = pool_take(reader->pool, &reader->done);
	if (!reader->done.first && !*kicked && deadline_ns > 0) {
		news_wait(pool_news_fd(reader->pool), deadline_ns);
		*kicked = pool_take(reader->pool, &reader->done);
	}
	while (count < max && (done[count] = works_take(&reader->done)))
		count++;
	return count;
}

static void pread_slow(void *backend, struct pool_share *share, bool slow)
{
	struct reader *reader = backend;

	pool_slow(reader->pool, share, slow);
}

static void pread_kick(void *backend)
{
	struct reader *reader = backend;

	pool_kick(reader->pool);
}

static void pread_close(void *backend)
{
	struct reader *reader = backend;

	pool_close(reader->pool);
	free(reader);
}

static void *pread_open(unsigned works, const char **what, int *error)
{
	struct reader *reader = calloc(1, sizeof(*reader));

	(void)works; /* no list here has a bound of its own */
	*what = "memory";
	*error = ENOMEM;
	if (!reader)
		return NULL;
	works_clear(&reader->submitted);
	works_clear(&reader->done);
	reader->pool = pool_open(what, error);
	if (!reader->pool) {
		free(reader);
		return NULL;
	}
	return reader;
}

const struct disk_ops disk_pread = {
	.name = "pread",
	.open = pread_open,
	.close = pread_close,
	.submit = pread_submit,
	.commit = pread_commit,
	.reap = pread_reap,
	.kick = pread_kick,
	.slow = pread_slow,
};
