/*
 * With io_uring, a read of bytes in the page cache ends inside the submit, and its completion is
 * found without another system call. Without it, the data thread itself reads bytes that are in the
 * page cache, with RWF_NOWAIT; for shards of a few GB these are nearly all bytes. A read that
 * RWF_NOWAIT refuses has already started its read-ahead.
 *
 * All other works go to the pool, because in the ring they could block the data thread, or read
 * wrong bytes. The kernel opens a FUSE file inside the submit if the name is cached. FUSE files can
 * be polled and always seem readable, so the kernel also reads them inside the submit (Linux 6.9
 * and later). After a short answer under FOPEN_DIRECT_IO it reads the same offset again as if it
 * were the rest (seen on 6.18): wrong bytes without an error.
 *
 * The ring is set up without SINGLE_ISSUER and DEFER_TASKRUN, because it is made in one thread,
 * used in a second, and closed by the first. Neither has a measurable benefit if nearly all reads
 * end inside the submit.
 */
#include "daemon/io/pool.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

struct io {
	bool has_ring;
	struct io_uring ring;
	struct pool *pool;
	struct works fast; /* without a ring: reads to be tried at the commit */
	struct works slow; /* for the pool, until the commit */
	struct works done; /* and not reaped */
	uint64_t news;	   /* destination of the read of the pool's descriptor */
	bool armed;	   /* that read is in the ring */
};

/* ---- the ring ---- */

static bool ring_init(struct io_uring *ring, unsigned entries, struct fault *fault)
{
	static const unsigned flags[] = {
		IORING_SETUP_COOP_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG, /* 5.19: no interrupt for each completion */
		0,
	};
	int error = EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && error == EINVAL; i++) {
		struct io_uring_params params = {.flags = flags[i]};

		error = -io_uring_queue_init_params(entries, ring, &params);
	}
	return error == 0 || io_fault(fault, error, "io_uring_setup");
}

/* False: it lacks reads, or waits with a timeout (Linux 5.11). */
static bool ring_open(struct io_uring *ring, unsigned entries, struct fault *fault)
{
	if (!ring_init(ring, entries, fault))
		return false;

	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
		   ring->features & IORING_FEAT_EXT_ARG;

	io_uring_free_probe(probe);
	if (can)
		return true;
	io_uring_queue_exit(ring);
	return io_fault(fault, EOPNOTSUPP, "the kernel's io_uring is older than Linux 5.11");
}

static void ring_commit(struct io_uring *ring)
{
	while (io_uring_sq_ready(ring) > 0) {
		int n = io_uring_submit(ring);

		/* No memory, or no room for completions: the next wait submits again. */
		if (n == -EAGAIN || n == -EBUSY || n == -ENOMEM)
			return;
		assert(n >= 0 || n == -EINTR);
	}
}

static void ring_read(
	struct io_uring *ring, int fd, const struct iovec to[2], uint64_t at, struct io_work *work)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	assert(to->iov_len > 0 && to->iov_len <= INT32_MAX);
	/* There is an entry for each work and the news, so the ring is full only if the kernel
	 * postponed a submit. */
	while (!sqe) {
		ring_commit(ring);
		sqe = io_uring_get_sqe(ring);
	}
	if (to[1].iov_len > 0)
		io_uring_prep_readv(sqe, fd, to, 2, at);
	else
		io_uring_prep_read(sqe, fd, to->iov_base, (unsigned)to->iov_len, at);
	io_uring_sqe_set_data(sqe, work);
}

/* Queues a read of the pool's descriptor, unless there is one. */
static void ring_arm(struct io *io)
{
	const struct iovec to[2] = {{&io->news, sizeof(io->news)}};

	if (!io->armed)
		ring_read(&io->ring, pool_news_fd(io->pool), to, 0, NULL);
	io->armed = true;
}

/* Returns up to @max reads that have ended. */
static unsigned ring_take(struct io *io, struct io_work **done, unsigned max, bool *kicked)
{
	struct io_uring_cqe *cqe[64];
	unsigned count = 0, seen = io_uring_peek_batch_cqe(&io->ring, cqe, max < 64 ? max : 64);

	for (unsigned i = 0; i < seen; i++) {
		struct io_work *work = io_uring_cqe_get_data(cqe[i]);

		if (work) {
			assert(!work->call && work->nowait);
			work->result = cqe[i]->res;
			done[count++] = work;
		} else {
			assert(io->armed);
			io->armed = false;
			*kicked |= pool_take(io->pool, &io->done);
		}
	}
	io_uring_cq_advance(&io->ring, seen);
	return count;
}

static void ring_wait(struct io *io, struct timespec left)
{
	struct __kernel_timespec wait = {.tv_sec = left.tv_sec, .tv_nsec = left.tv_nsec};
	struct io_uring_cqe *cqe;

	/* The news may have been taken just now with nothing new: listen again. */
	ring_arm(io);
	int n = io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, &wait, NULL);

	/* The caller looks at the clock and calls again. */
	assert(n >= 0 || n == -ETIME || n == -EINTR || n == -EAGAIN || n == -EBUSY || n == -ENOMEM);
}

/* ---- without a ring ---- */

/* True: it was read, from the page cache. After an error the pool tries again and reports it. */
static bool read_cached(struct io_work *work)
{
	if (work->direct) /* RWF_NOWAIT waits for the device */
		return false;
	work->result = preadv2(work->fd, work->to, 2, (off_t)work->at, RWF_NOWAIT);
	return work->result >= 0;
}

static void news_wait(int fd, struct timespec left)
{
	struct pollfd news = {.fd = fd, .events = POLLIN};
	eventfd_t count;

	if (ppoll(&news, 1, &left, NULL) > 0)
		eventfd_read(fd, &count);
}

/* ---- both ---- */

struct io *io_new(unsigned works, bool ring, struct fault *fault)
{
	struct io *io = calloc(1, sizeof(*io));

	if (!io) {
		io_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	STAILQ_INIT(&io->fast);
	STAILQ_INIT(&io->slow);
	STAILQ_INIT(&io->done);
	io->has_ring = ring;
	if (ring && !ring_open(&io->ring, works + 1, fault))
		goto free_io;
	io->pool = pool_open(works, fault);
	if (io->pool)
		return io;
	if (ring)
		io_uring_queue_exit(&io->ring);
free_io:
	free(io);
	return NULL;
}

void io_free(struct io *io)
{
	assert(STAILQ_EMPTY(&io->fast) && STAILQ_EMPTY(&io->slow) && STAILQ_EMPTY(&io->done));
	if (io->has_ring)
		io_uring_queue_exit(&io->ring);
	pool_close(io->pool);
	free(io);
}

const char *io_name(const struct io *io)
{
	return io->has_ring ? "uring" : "pread";
}

void io_submit(struct io *io, struct io_work *work)
{
	assert(work->call ? !work->nowait : work->fd >= 0 && work->to->iov_len > 0);
	if (work->call || !work->nowait)
		STAILQ_INSERT_TAIL(&io->slow, work, next);
	else if (io->has_ring)
		ring_read(&io->ring, work->fd, work->to, work->at, work);
	else
		STAILQ_INSERT_TAIL(&io->fast, work, next);
}

void io_commit(struct io *io)
{
	struct io_work *work;

	while ((work = works_take(&io->fast))) {
		struct works *to = read_cached(work) ? &io->done : &io->slow;

		STAILQ_INSERT_TAIL(to, work, next);
	}
	pool_give(io->pool, &io->slow);
	if (!io->has_ring)
		return;
	ring_arm(io);
	ring_commit(&io->ring);
}

static unsigned take(struct io *io, struct io_work **done, unsigned max, bool *kicked)
{
	unsigned count = 0;

	if (io->has_ring)
		count = ring_take(io, done, max, kicked);
	else
		*kicked |= pool_take(io->pool, &io->done);
	while (count < max && (done[count] = works_take(&io->done)))
		count++;
	return count;
}

unsigned io_reap(
	struct io *io, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	/* A commit comes before a wait. */
	assert(max > 0 && STAILQ_EMPTY(&io->fast) && STAILQ_EMPTY(&io->slow));
	*kicked = false;
	unsigned count = take(io, done, max, kicked);
	int64_t left_ns = deadline_ns == 0 ? 0 : deadline_ns - io_now_ns();

	if (count > 0 || *kicked || left_ns <= 0)
		return count;
	struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};

	if (io->has_ring)
		ring_wait(io, left);
	else
		news_wait(pool_news_fd(io->pool), left);
	return take(io, done, max, kicked);
}

void io_kick(struct io *io)
{
	pool_kick(io->pool);
}
