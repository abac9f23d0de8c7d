/*
 * A client may write to the slot that is being read: here always after a read and before the reader
 * checks it. A second reading decides, and does not depend on the client's writes.
 */
#include "tests/unit/shelf.h"

enum { TOKENS = 20000, LIMIT = 30000 };

/* ---- a backend that overwrites ---- */

static const struct io_ops *real;
static bool scribbles;
static unsigned scribbled;

static void *scribbler_open(unsigned works, struct fault *fault)
{
	return real->open(works, fault);
}

static void scribbler_close(void *backend)
{
	real->close(backend);
}

static void scribbler_submit(void *backend, struct io_work *work)
{
	real->submit(backend, work);
}

static void scribbler_commit(void *backend)
{
	real->commit(backend);
}

/* Sets every bit that was read: no token is below a limit, and each is negative. */
static unsigned scribbler_reap(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	unsigned n = real->reap(backend, done, max, deadline_ns, kicked);

	for (unsigned i = 0; scribbles && i < n; i++)
		if (!done[i]->call && done[i]->result > 0) {
			memset(done[i]->to, 0xff, (size_t)done[i]->result);
			scribbled++;
		}
	return n;
}

static void scribbler_kick(void *backend)
{
	real->kick(backend);
}

static void scribbler_slow(void *backend, struct pool_share *share, bool slow)
{
	real->slow(backend, share, slow);
}

static bool scribbler_withdraw(void *backend, struct io_work *work)
{
	return real->withdraw(backend, work);
}

static const struct io_ops scribbler = {
	"scribbler",
	scribbler_open,
	scribbler_close,
	scribbler_submit,
	scribbler_commit,
	scribbler_reap,
	scribbler_kick,
	scribbler_withdraw,
	scribbler_slow,
};

static struct reader *scribbler_disk(const struct mode *mode)
{
	struct reader_options options = options_of(mode, 4);
	struct fault fault;

	skip_without_uring(mode);
	real = mode->io == CONFIG_IO_URING ? &uring_ops : &pread_ops;
	scribbles = true;
	scribbled = 0;
	return reader_open_with(&scribbler, &options, &fault);
}

/* ---- signed tokens, plain ---- */

/* Tokens of @bytes each, below LIMIT, except for token @bad, if any. */
static struct shelf *shelf_of(uint32_t bytes, uint64_t bad, uint32_t value)
{
	struct shelf *shelf = shelf_new(1, TOKENS * bytes / 2);
	struct rng rng = {.state = 3};

	shelf->dataset.token_bytes = bytes;
	shelf->dataset.is_signed = bytes == 4;
	shelf->dataset.limit = LIMIT;
	shelf->tokens[0] = TOKENS;
	for (uint64_t i = 0; i < TOKENS; i++) {
		uint32_t token = i == bad ? value : rng_below(&rng, LIMIT);

		memcpy(shelf->bytes[0] + i * bytes, &token, bytes);
	}
	write_file(shelf_path(shelf, 0), shelf->bytes[0], (size_t)TOKENS * bytes);
	identify(shelf, 0);
	return shelf;
}

static struct reader_done read_one(
	struct reader *reader, const struct shelf *shelf, uint64_t token, uint64_t n, char *to)
{
	struct reader_read read = {
		.tag = 5, .dataset = &shelf->dataset, .token = token, .tokens = n, .to = to};
	struct reader_done done;

	reader_queue(reader, &read);
	reader_commit(reader);
	assert_int_equal(reader_reap(reader, &done, 1, 10000), 1);
	assert_int_equal(done.tag, 5);
	return done;
}

static void a_client_that_overwrites_tokens_stops_nothing(void **state)
{
	for (uint32_t bytes = 2; bytes <= 4; bytes += 2) {
		struct shelf *shelf = shelf_of(bytes, TOKENS, 0);
		struct reader *reader = scribbler_disk(*state);
		char *to = calloc(TOKENS, bytes);

		assert_non_null(reader);
		for (uint64_t n = 1; n <= TOKENS; n = n * 3 + 1) {
			struct reader_done done = read_one(reader, shelf, TOKENS - n, n, to);

			assert_null(done.fault);
			assert_memory_equal(to, shelf->bytes[0] + (TOKENS - n) * bytes, n * bytes);
		}
		assert_true(scribbled >= 9);
		reader_close(reader);
		free(to);
		shelf_free(shelf);
	}
}

static void refuses(
	const struct mode *mode, uint32_t bytes, uint64_t bad, uint32_t value, const char *text)
{
	struct shelf *shelf = shelf_of(bytes, bad, value);
	struct reader *reader = scribbler_disk(mode);
	char *to = calloc(TOKENS, bytes);

	assert_non_null(reader);
	for (unsigned i = 0; i < 2; i++) {
		scribbles = i == 0; /* the file decides, with and without the client's writes */
		struct reader_done done = read_one(reader, shelf, 100, TOKENS - 100, to);

		assert_fault(&done, FAULT_TOKEN, 0);
		assert_false(done.fault->passing);
		assert_memory_equal(done.fault->text, text, strlen(text));
		assert_null(read_one(reader, shelf, 0, bad, to).fault);
	}
	assert_int_equal(scribbled, 2);
	reader_close(reader);
	free(to);
	shelf_free(shelf);
}

static void tokens_that_may_not_be_served_are_faults(void **state)
{
	refuses(*state, 4, TOKENS - 1, (uint32_t)-7, "token 19999 is -7; must be 0 or more");
	refuses(*state, 4, 8200, LIMIT,
		"token 8200 is 30000; must be below the stream's vocab, 30000");
	refuses(*state, 2, 101, LIMIT,
		"token 101 is 30000; must be below the stream's vocab, 30000");
	refuses(*state, 2, 16500, UINT16_MAX,
		"token 16500 is 65535; must be below the stream's vocab, 30000");
}

static const struct test_case cases[] = {
	CASE(a_client_that_overwrites_tokens_stops_nothing),
	CASE(tokens_that_may_not_be_served_are_faults),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
