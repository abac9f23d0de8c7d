/*
 * io_uring for reads from file systems that can read without waiting (those that know RWF_NOWAIT:
 * ext4, xfs, btrfs, …). A read of bytes in the page cache ends inside the submit, and its
 * completion is found without another system call.
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
#include <stdlib.h>

struct uring {
	struct io_uring ring;
	struct pool *pool;
	struct works waiting; /* for the pool, until the commit */
	struct works done;    /* by the pool */
	uint64_t news;	      /* destination of the read of the pool's descriptor */
	bool armed;	      /* that read is in the ring */
};

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
	return error == 0 || io_open_fault(fault, error, "io_uring_setup");
}

/* The backend needs reads, and waits with a timeout (Linux 5.11). */
static bool ring_can(struct io_uring *ring)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
		   ring->features & IORING_FEAT_EXT_ARG;

	io_uring_free_probe(probe);
	return can;
}

static bool ring_open(struct io_uring *ring, unsigned entries, struct fault *fault)
{
	if (!ring_init(ring, entries, fault))
		return false;
	if (ring_can(ring))
		return true;
	io_uring_queue_exit(ring);
	return io_open_fault(fault, EOPNOTSUPP, "the kernel's io_uring is older than Linux 5.11");
}

static void *uring_open(unsigned works, struct fault *fault)
{
	struct uring *u = calloc(1, sizeof(*u));

	if (!u) {
		io_open_fault(fault, ENOMEM, "memory");
		return NULL;
	}
	works_clear(&u->waiting);
	works_clear(&u->done);
	if (!ring_open(&u->ring, works + 1, fault))
		goto free_uring;
	u->pool = pool_open(fault);
	if (!u->pool)
		goto close_ring;
	return u;
close_ring:
	io_uring_queue_exit(&u->ring);
free_uring:
	free(u);
	return NULL;
}

static void uring_close(void *backend)
{
	struct uring *u = backend;

	assert(!u->waiting.first && !u->done.first);
	io_uring_queue_exit(&u->ring);
	pool_close(u->pool);
	free(u);
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

static struct io_uring_sqe *ring_entry(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	/* There is an entry for each work and the news, so the ring is full only if the kernel
	 * postponed a submit. */
	while (!sqe) {
		ring_commit(ring);
		sqe = io_uring_get_sqe(ring);
	}
	return sqe;
}

static void uring_submit(void *backend, struct io_work *work)
{
	struct uring *u = backend;

	if (work->call || !work->nowait) {
		works_add(&u->waiting, work);
		return;
	}
	assert(work->bytes > 0 && work->bytes <= INT32_MAX);
	struct io_uring_sqe *sqe = ring_entry(&u->ring);

	io_uring_prep_read(sqe, work->fd, work->to, (unsigned)work->bytes, work->at);
	io_uring_sqe_set_data(sqe, work);
	work_begun(work, true);
}

/* Queues a read of the pool's descriptor, unless there is one. */
static void uring_arm(struct uring *u)
{
	if (u->armed)
		return;
	struct io_uring_sqe *sqe = ring_entry(&u->ring);

	assert(sqe);
	io_uring_prep_read(sqe, pool_news_fd(u->pool), &u->news, sizeof(u->news), 0);
	io_uring_sqe_set_data(sqe, NULL);
	u->armed = true;
}

static void uring_commit(void *backend)
{
	struct uring *u = backend;

	pool_give(u->pool, &u->waiting);
	uring_arm(u);
	ring_commit(&u->ring);
}

/* ---- completions ---- */

static unsigned uring_harvest(struct uring *u, struct io_work **done, unsigned max, bool *kicked)
{
	struct io_uring_cqe *cqe[64];
	unsigned count = 0, seen = io_uring_peek_batch_cqe(&u->ring, cqe, max < 64 ? max : 64);

	for (unsigned i = 0; i < seen; i++) {
		struct io_work *work = io_uring_cqe_get_data(cqe[i]);

		if (work) {
			assert(!work->call && work->nowait);
			work->result = cqe[i]->res;
			done[count++] = work;
		} else {
			assert(u->armed);
			u->armed = false;
			*kicked |= pool_take(u->pool, &u->done);
		}
	}
	io_uring_cq_advance(&u->ring, seen);
	while (count < max && (done[count] = works_take(&u->done)))
		count++;
	return count;
}

static void uring_wait(struct uring *u, int64_t deadline_ns)
{
	int64_t left_ns = deadline_ns - io_now_ns();

	if (left_ns <= 0)
		return;
	struct __kernel_timespec wait = {
		.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
	struct io_uring_cqe *cqe;
	assert(u->armed); /* otherwise the pool's news would not end the wait */
	int n = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &wait, NULL);

	/* The caller looks at the clock and calls again. */
	assert(n >= 0 || n == -ETIME || n == -EINTR || n == -EAGAIN || n == -EBUSY || n == -ENOMEM);
}

static unsigned uring_reap(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	struct uring *u = backend;
	assert(max > 0 && !u->waiting.first); /* commit() comes before a wait */
	unsigned count = uring_harvest(u, done, max, kicked);

	if (count > 0 || *kicked || deadline_ns == 0)
		return count;
	/* The news may have been harvested just now with nothing new: listen again. */
	uring_arm(u);
	uring_wait(u, deadline_ns);
	return uring_harvest(u, done, max, kicked);
}

static bool uring_withdraw(void *backend, struct io_work *work)
{
	struct uring *u = backend;

	assert(work->call);
	return works_remove(&u->waiting, work) || pool_withdraw(u->pool, work);
}

static void uring_slow(void *backend, struct pool_share *share, bool slow)
{
	struct uring *u = backend;

	pool_slow(u->pool, share, slow);
}

static void uring_kick(void *backend)
{
	struct uring *u = backend;

	pool_kick(u->pool);
}

const struct io_ops uring_ops = {
	.name = "uring",
	.open = uring_open,
	.close = uring_close,
	.submit = uring_submit,
	.commit = uring_commit,
	.reap = uring_reap,
	.kick = uring_kick,
	.withdraw = uring_withdraw,
	.slow = uring_slow,
};
