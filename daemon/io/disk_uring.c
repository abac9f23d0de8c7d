/*
 * io_uring: every step that can wait (open, statx, read, close) is an entry of one ring, so no thread of ours
 * ever stands in a file system. A read of what the page cache holds ends inside the submit, and its
 * completion is found without another system call.
 *
 * The ring is set up without SINGLE_ISSUER and DEFER_TASKRUN: it is made in one thread, used in a second, and
 * closed by the first when that has ended, and neither gains anything measurable where nearly all reads end
 * inline.
 */
#include "disk_ops.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct uring {
	struct io_uring ring;
	int kick_fd;
	uint64_t kicks; /* what the read of kick_fd fills in */
	bool armed;	/* that read is in the ring */
};

static int ring_init(struct io_uring *ring, unsigned entries)
{
	static const unsigned flags[] = {
		IORING_SETUP_COOP_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG, /* 5.19: no interrupt for each completion */
		0,
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		struct io_uring_params params = {.flags = flags[i]};

		error = -io_uring_queue_init_params(entries, ring, &params);
		if (error != EINVAL)
			break;
	}
	return error;
}

static bool ring_can(struct io_uring *ring)
{
	static const int needed[] = {IORING_OP_READ, IORING_OP_OPENAT, IORING_OP_STATX, IORING_OP_CLOSE};
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool can = probe && ring->features & IORING_FEAT_EXT_ARG;

	for (size_t i = 0; can && i < sizeof(needed) / sizeof(needed[0]); i++)
		can = io_uring_opcode_supported(probe, needed[i]);
	io_uring_free_probe(probe);
	return can;
}

static void uring_close(void *backend)
{
	struct uring *u = backend;

	io_uring_queue_exit(&u->ring);
	close(u->kick_fd);
	free(u);
}

static void *uring_open(unsigned works, const char **what, int *error)
{
	struct uring *u = calloc(1, sizeof(*u));

	*what = "memory";
	*error = ENOMEM;
	if (!u)
		return NULL;
	*what = "eventfd";
	u->kick_fd = eventfd(0, EFD_CLOEXEC);
	if (u->kick_fd < 0) {
		*error = errno;
		goto free_uring;
	}
	*what = "io_uring_setup";
	*error = ring_init(&u->ring, works + 1);
	if (*error)
		goto close_kick;
	*what = "the kernel's io_uring is older than Linux 5.11";
	*error = EOPNOTSUPP;
	if (!ring_can(&u->ring)) {
		uring_close(u);
		return NULL;
	}
	return u;
close_kick:
	close(u->kick_fd);
free_uring:
	free(u);
	return NULL;
}

static void uring_commit(void *backend)
{
	struct uring *u = backend;

	while (io_uring_sq_ready(&u->ring) > 0) {
		int n = io_uring_submit(&u->ring);

		/* Short of memory or of room for completions, the next wait submits again. */
		if (n == -EAGAIN || n == -EBUSY || n == -ENOMEM)
			return;
		assert(n >= 0 || n == -EINTR);
	}
}

static struct io_uring_sqe *uring_entry(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	/* There is an entry for each work and the kick: only a submit that the kernel put off can fill the
	 * ring. */
	while (!sqe) {
		uring_commit(u);
		sqe = io_uring_get_sqe(&u->ring);
	}
	return sqe;
}

static void uring_arm(struct uring *u)
{
	if (u->armed)
		return;
	struct io_uring_sqe *sqe = uring_entry(u);

	io_uring_prep_read(sqe, u->kick_fd, &u->kicks, sizeof(u->kicks), 0);
	io_uring_sqe_set_data(sqe, NULL);
	u->armed = true;
}

/* ---- an opening: close the old one, open, look ---- */

enum { STEP_CLOSE, STEP_OPEN, STEP_LOOK };

static void opening_step(struct uring *u, struct disk_work *work)
{
	struct disk_opening *opening = work->opening;
	struct io_uring_sqe *sqe = uring_entry(u);

	switch (opening->step) {
	case STEP_CLOSE:
		io_uring_prep_close(sqe, opening->old);
		break;
	case STEP_OPEN:
		io_uring_prep_openat(sqe, AT_FDCWD, opening->path, opening->flags, 0);
		break;
	case STEP_LOOK:
		io_uring_prep_statx(
			sqe, (int)work->result, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &opening->found);
		break;
	}
	io_uring_sqe_set_data(sqe, work);
}

/* Takes the result of one step; true: it was the last. */
static bool opening_went(struct uring *u, struct disk_work *work, int result)
{
	struct disk_opening *opening = work->opening;

	switch (opening->step) {
	case STEP_CLOSE:
		opening->old = -1;
		break;
	case STEP_OPEN:
		work->result = result;
		if (result < 0)
			return true;
		break;
	case STEP_LOOK:
		if (result < 0) {
			close((int)work->result);
			work->result = result;
		}
		return true;
	}
	opening->step++;
	opening_step(u, work);
	return false;
}

static void uring_submit(void *backend, struct disk_work *work)
{
	struct uring *u = backend;

	if (work->opening) {
		work->opening->step = work->opening->old >= 0 ? STEP_CLOSE : STEP_OPEN;
		opening_step(u, work);
		return;
	}
	struct io_uring_sqe *sqe = uring_entry(u);

	io_uring_prep_read(sqe, work->fd, work->to, (unsigned)work->bytes, work->at);
	io_uring_sqe_set_data(sqe, work);
}

/* ---- completions ---- */

static bool completion_ends(struct uring *u, const struct io_uring_cqe *cqe, bool *kicked)
{
	struct disk_work *work = io_uring_cqe_get_data(cqe);

	if (!work) {
		u->armed = false;
		*kicked = true;
		return false;
	}
	if (work->opening)
		return opening_went(u, work, cqe->res);
	work->result = cqe->res;
	return true;
}

static unsigned uring_harvest(struct uring *u, struct disk_work **done, unsigned max, bool *kicked)
{
	struct io_uring_cqe *cqe[64];
	unsigned count = 0, seen = io_uring_peek_batch_cqe(&u->ring, cqe, max < 64 ? max : 64);

	for (unsigned i = 0; i < seen; i++)
		if (completion_ends(u, cqe[i], kicked))
			done[count++] = io_uring_cqe_get_data(cqe[i]);
	io_uring_cq_advance(&u->ring, seen);
	return count;
}

static void uring_wait(struct uring *u, int64_t deadline_ns)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t left_ns = deadline_ns - (now.tv_sec * INT64_C(1000000000) + now.tv_nsec);

	if (left_ns <= 0)
		return;
	struct __kernel_timespec wait = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
	struct io_uring_cqe *cqe;

	int n = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &wait, NULL);

	/* Whoever called looks at the clock, and comes again. */
	assert(n >= 0 || n == -ETIME || n == -EINTR || n == -EAGAIN || n == -EBUSY || n == -ENOMEM);
}

static unsigned uring_reap(
	void *backend, struct disk_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	struct uring *u = backend;
	unsigned count = uring_harvest(u, done, max, kicked);

	if (count > 0 || *kicked || deadline_ns == 0)
		return count;
	uring_arm(u);
	uring_wait(u, deadline_ns);
	return uring_harvest(u, done, max, kicked);
}

static void uring_kick(void *backend)
{
	struct uring *u = backend;

	eventfd_write(u->kick_fd, 1);
}

const struct disk_ops disk_uring = {
	.name = "uring",
	.open = uring_open,
	.close = uring_close,
	.submit = uring_submit,
	.commit = uring_commit,
	.reap = uring_reap,
	.kick = uring_kick,
};
