/*
 * Faults that no file system produces on demand come from a wrapper around the real backend: the
 * n-th operation fails, for every n.
 */
#include "tests/unit/injected.h"
#include "tests/unit/shelf.h"

/* ---- a backend with faults ---- */

static struct injection {
	const struct io_ops *real;
	bool direct;
	/* The fault of work number @nth of its kind, and of the next ones, @times in all. */
	enum { INJECT_READ, INJECT_OPEN, INJECT_SHORT } kind;
	int error;
	unsigned nth, times;
	unsigned injected;
	uint64_t bytes; /* asked for by reads */
} injection;

static void *injected_open(unsigned works, struct fault *fault)
{
	return injection.real->open(works, fault);
}

/* The only call that returns a descriptor is the opening of a file. */
static bool is_opening(const struct io_work *work)
{
	return work->call && work->result > 0;
}

static bool is_hit(const struct io_work *work)
{
	if (work->result < 0 || (injection.kind == INJECT_OPEN ? !is_opening(work) : !!work->call))
		return false;
	if (injection.nth > 0 && injection.nth-- > 0)
		return false;
	if (injection.injected == injection.times)
		return false;
	injection.injected++;
	return true;
}

static void inject_into(struct io_work *work)
{
	if (injection.kind == INJECT_SHORT) {
		uint64_t unit = injection.direct ? 512 : 1;

		if ((uint64_t)work->result > unit)
			work->result -= (int64_t)((uint64_t)work->result / 2 / unit * unit);
		return;
	}
	if (is_opening(work))
		close((int)work->result);
	work->result = -injection.error;
}

static unsigned injected_reap(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	unsigned n = injection.real->reap(backend, done, max, deadline_ns, kicked);

	for (unsigned i = 0; i < n; i++) {
		injection.bytes += done[i]->call ? 0 : done[i]->bytes;
		if (is_hit(done[i]))
			inject_into(done[i]);
	}
	return n;
}

static struct io_ops injected_ops;

static void checker_with_faults(struct checker *checker, const struct mode *mode, unsigned files)
{
	struct fault fault;
	struct reader_options options = options_of(mode, files);

	skip_without_uring(mode);
	memset(&injection, 0, sizeof(injection));
	injection.real = mode->io == CONFIG_IO_URING ? &uring_ops : &pread_ops;
	injection.direct = mode->direct;
	injected_ops = *injection.real;
	injected_ops.open = injected_open;
	injected_ops.reap = injected_reap;
	checker_use(checker, reader_open_with(&injected_ops, &options, &fault));
}

static void inject(int kind, int error, unsigned nth, unsigned times)
{
	injection.kind = kind;
	injection.error = error;
	injection.nth = nth;
	injection.times = times;
	injection.injected = 0;
}

/* Counts the faults that were injected, by their rows in the catalogue. */
static void count(void)
{
	if (injection.kind == INJECT_SHORT)
		injected(13, injection.injected);
	else if (injection.error == EIO)
		injected(9, injection.injected);
	else if (injection.error == ESTALE)
		injected(36, injection.injected);
}

/* A fault of the n-th operation, for every n: all bytes are right in the end. */
static void passing_faults_are_retried(void **state)
{
	static const struct {
		int kind, error;
		unsigned times;
	} cases[] = {
		{INJECT_READ, EINTR, 5},
		{INJECT_READ, EAGAIN, 100},
		{INJECT_READ, ESTALE, 1},
		{INJECT_OPEN, EINTR, 3},
		{INJECT_OPEN, ESTALE, 1},
		{INJECT_SHORT, 0, 100},
	};
	struct shelf *shelf = shelf_new(4, 20000);
	struct checker checker;

	checker_with_faults(&checker, *state, 2);
	for (unsigned c = 0; c < COUNT(cases); c++) {
		for (unsigned nth = 0; nth < 40; nth += 3) {
			inject(cases[c].kind, cases[c].error, nth, cases[c].times);
			read_random(&checker, shelf, 100, 10000);
			if (cases[c].kind != INJECT_OPEN || nth < 4)
				assert_int_equal(injection.injected, cases[c].times);
			count();
		}
	}
	checker_close(&checker);
	shelf_free(shelf);
}

/* The error is reported for its read, and the next read begins anew. One that may pass is reported
 * a second later, because the read is tried again at once. */
static void lasting_faults_are_reported(void **state)
{
	static const struct {
		int kind, error;
		bool passes;
	} cases[] = {
		{INJECT_READ, EIO, true},
		{INJECT_READ, ESTALE, true},
		{INJECT_READ, EAGAIN, true},
		{INJECT_OPEN, EIO, true},
		{INJECT_OPEN, EACCES, false},
		{INJECT_OPEN, ESTALE, true},
	};
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;

	checker_with_faults(&checker, *state, 1);
	for (unsigned c = 0; c < COUNT(cases); c++) {
		assert_reads(&checker, shelf, 1);
		inject(cases[c].kind, cases[c].error, 0, 2000);
		int64_t begin = io_now_ns();

		assert_errno(&checker, shelf, 0, cases[c].error);
		assert_true(injection.injected > 0);
		assert_true(!cases[c].passes || io_now_ns() - begin >= 1000000000);
		count();
		injection.times = injection.injected;
		assert_reads(&checker, shelf, 0);
	}
	checker_close(&checker);
	assert_int_equal(open_below(shelf->root), 0);
	shelf_free(shelf);
}

/* A file system that accepts O_DIRECT in open(), and refuses it in the read. */
/* The file system may allow blocks smaller than a page: those of the device. */
static void direct_reads_the_blocks_of_its_window(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(1, 10000);
	struct checker checker;
	struct statx found;
	uint64_t from = DATA_AT + 2 * 100, end = from + 4098, align = 1;

	checker_with_faults(&checker, mode, 1);
	close((int)io_open(shelf_path(shelf, 0), O_RDONLY | O_CLOEXEC, &found));
	if (mode->direct)
		align = io_align(&found);
	checker_queue(&checker, shelf, 0, 100, 2049);
	reader_commit(checker.reader);
	while (checker.in_flight > 0)
		reap_right(&checker, shelf);
	assert_int_equal(injection.bytes, (end + align - 1) / align * align - from / align * align);
	count();
	checker_close(&checker);
	shelf_free(shelf);
}

static void direct_refused_at_the_read(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(2, 20000);
	struct checker checker;

	checker_with_faults(&checker, mode, 2);
	inject(INJECT_READ, EINVAL, 20, 1);
	if (mode->direct) {
		read_random(&checker, shelf, 500, 3000);
		assert_int_equal(injection.injected, 1);
		assert_non_null(
			strstr(reader_notes(checker.reader), "its file system refuses O_DIRECT"));
	} else {
		injection.nth = 0;
		assert_errno(&checker, shelf, 0, EINVAL);
		assert_string_equal(reader_notes(checker.reader), "");
	}
	checker_close(&checker);
	shelf_free(shelf);
}

static const struct test_case cases[] = {
	CASE(passing_faults_are_retried),
	CASE(lasting_faults_are_reported),
	CASE(direct_reads_the_blocks_of_its_window),
	CASE(direct_refused_at_the_read),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
