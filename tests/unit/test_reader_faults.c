/*
 * What no file system does on command comes from a backend laid over the real one: the n-th
 * operation fails, for every n.
 */
#include "tests/unit/shelf.h"

/* ---- faults laid over a real backend ---- */

static struct injection {
	const struct io_ops *real;
	bool direct;
	/* What to do to the @nth work of its kind that comes back, and to those after it while
	 * @times lasts.
	 */
	enum { FAULT_READ, FAULT_OPEN, FAULT_SHORT } kind;
	int error;
	unsigned nth, times;
	unsigned injected;
} fault;

static void *fault_open(unsigned works, const char **what, int *error)
{
	return fault.real->open(works, what, error);
}

static bool fault_hits(const struct io_work *work)
{
	if (!!work->opening != (fault.kind == FAULT_OPEN) || work->result < 0)
		return false;
	if (fault.nth > 0 && fault.nth-- > 0)
		return false;
	if (fault.injected == fault.times)
		return false;
	fault.injected++;
	return true;
}

static void fault_apply(struct io_work *work)
{
	if (fault.kind == FAULT_SHORT) {
		uint64_t unit = fault.direct ? 512 : 1;

		if ((uint64_t)work->result > unit)
			work->result -= (int64_t)((uint64_t)work->result / 2 / unit * unit);
		return;
	}
	if (work->opening)
		close((int)work->result);
	work->result = -fault.error;
}

static unsigned fault_reap(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	unsigned n = fault.real->reap(backend, done, max, deadline_ns, kicked);

	for (unsigned i = 0; i < n; i++)
		if (fault_hits(done[i]))
			fault_apply(done[i]);
	return n;
}

static struct io_ops fault_ops;

static void fault_checker(struct checker *checker, const struct mode *mode, unsigned files)
{
	char why[LIMIT_TEXT_BYTES];
	struct reader_options options = options_of(mode, files);

	if (mode->io == CONFIG_IO_URING && !uring_works())
		skip();
	memset(&fault, 0, sizeof(fault));
	fault.real = mode->io == CONFIG_IO_URING ? &uring_ops : &pread_ops;
	fault.direct = mode->direct;
	fault_ops = *fault.real;
	fault_ops.open = fault_open;
	fault_ops.reap = fault_reap;
	checker_use(checker, reader_open_with(&fault_ops, &options, why, sizeof(why)));
}

static void inject(int kind, int error, unsigned nth, unsigned times)
{
	fault.kind = kind;
	fault.error = error;
	fault.nth = nth;
	fault.times = times;
	fault.injected = 0;
}

/* A fault at the n-th operation, for every n: all bytes are right in the end. */
static void passing_faults(void **state)
{
	static const struct {
		int kind, error;
		unsigned times;
	} cases[] = {
		{FAULT_READ, EINTR, 5},
		{FAULT_READ, EAGAIN, 100},
		{FAULT_READ, ESTALE, 1},
		{FAULT_OPEN, EINTR, 3},
		{FAULT_OPEN, ESTALE, 1},
		{FAULT_SHORT, 0, 100},
	};
	struct shelf *shelf = shelf_new(4, 20000);
	struct checker checker;

	fault_checker(&checker, *state, 2);
	for (unsigned c = 0; c < COUNT(cases); c++) {
		for (unsigned nth = 0; nth < 40; nth += 3) {
			inject(cases[c].kind, cases[c].error, nth, cases[c].times);
			read_random(&checker, shelf, 100, 10000);
			if (cases[c].kind != FAULT_OPEN || nth < 4)
				assert_int_equal(fault.injected, cases[c].times);
		}
	}
	checker_close(&checker);
	shelf_free(shelf);
}

/* The error comes out, with the request it belongs to; the next read begins anew. */
static void lasting_faults(void **state)
{
	static const struct {
		int kind, error;
	} cases[] = {
		{FAULT_READ, EIO},
		{FAULT_READ, ESTALE},
		{FAULT_READ, EAGAIN},
		{FAULT_OPEN, EIO},
		{FAULT_OPEN, EACCES},
		{FAULT_OPEN, ESTALE},
		{FAULT_OPEN, ENFILE},
	};
	struct shelf *shelf = shelf_new(2, 3000);
	struct checker checker;

	fault_checker(&checker, *state, 1);
	for (unsigned c = 0; c < COUNT(cases); c++) {
		assert_reads(&checker, shelf, 1);
		inject(cases[c].kind, cases[c].error, 0, 2000);
		assert_errno(&checker, shelf, 0, cases[c].error);
		assert_true(fault.injected > 0);
		fault.times = fault.injected;
		assert_reads(&checker, shelf, 0);
	}
	checker_close(&checker);
	assert_int_equal(open_below(shelf->root), 0);
	shelf_free(shelf);
}

/* A file system that takes O_DIRECT at open and refuses it at the read. */
static void direct_refused_at_the_read(void **state)
{
	const struct mode *mode = *state;
	struct shelf *shelf = shelf_new(2, 20000);
	struct checker checker;

	fault_checker(&checker, mode, 2);
	inject(FAULT_READ, EINVAL, 20, 1);
	if (mode->direct) {
		read_random(&checker, shelf, 500, 3000);
		assert_int_equal(fault.injected, 1);
		assert_non_null(
			strstr(reader_notes(checker.reader), "its file system refuses O_DIRECT"));
	} else {
		fault.nth = 0;
		assert_errno(&checker, shelf, 0, EINVAL);
		assert_string_equal(reader_notes(checker.reader), "");
	}
	checker_close(&checker);
	shelf_free(shelf);
}

static const struct test_case cases[] = {
	CASE(passing_faults),
	CASE(lasting_faults),
	CASE(direct_refused_at_the_read),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
