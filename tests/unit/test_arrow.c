/*
 * Arrow IPC files, put together byte by byte: how good ones are read. tests/python reads files of
 * pyarrow.
 */
#include "tests/unit/arrows.h"

static void test_good(void **state)
{
	struct made m;
	struct fault fault;
	uint32_t out[16], at[16];
	int fd;

	make(&m);
	for (int named = 0; named < 2; named++) {
		struct shard *shard = try_open(files_put(*state, "a.arrow", m.p.at, m.p.n),
			named ? "tokens" : NULL, &fd, &fault);

		if (!shard)
			fail_msg("%s", fault.text);
		assert_int_equal(shard->facts.tokens, TOKENS);
		assert_int_equal(shard->facts.documents, BATCHES);
		assert_int_equal(shard->facts.type, SHARD_U32);
		assert_false(shard->facts.plain);
		for (uint64_t from = 0; from <= TOKENS; from++) {
			const struct shard_place place[] = {
				{.token = from}, shard_find(shard, from)};

			assert_int_equal(place[1].token, from);
			assert_int_equal(place[1].tokens, from < 3 ? 3 - from : TOKENS - from);
			for (uint64_t n = 0; from + n <= TOKENS; n++) {
				assert_true(shard_read(shard, from, n, out, &fault));
				for (uint64_t i = 0; i < n; i++)
					assert_int_equal(out[i], 10 + from + i);
				for (int found = 0; found < 2 && files_try(fd); found++) {
					memset(out, 0, sizeof(out));
					assert_true(shard_try(shard, place[found], n, out));
					for (uint64_t i = 0; i < n; i++)
						assert_int_equal(out[i], 10 + from + i);
				}
				bool crosses = from < 3 && from + n > 3;

				assert_int_equal(
					shard_documents(shard, from, n, at, 16, &fault), crosses);
				if (crosses)
					assert_int_equal(at[0], 3 - from);
			}
		}
		shard_close(shard);
		close(fd);
	}
}

/* Files of Arrow before 0.15, whose messages begin with their length. */
static void test_old_messages(void **state)
{
	struct made m;
	struct fault fault;
	int fd;

	make(&m);
	/* The length moves up; what points at the root stays, so the first 4 bytes are the length
	 * alone. */
	uint32_t length = bytes_u32(m.p.at + m.spot[PREFIX_LENGTH]),
		 root = bytes_u32(m.p.at + m.spot[MESSAGE_ROOT]);

	set(&m.p, m.spot[PREFIX], length + 4, 4);
	set(&m.p, m.spot[PREFIX_LENGTH], root + 4, 4);
	struct shard *shard =
		try_open(files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, &fd, &fault);

	if (!shard)
		fail_msg("%s", fault.text);
	assert_int_equal(shard->facts.tokens, TOKENS);
	shard_close(shard);
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_good),
		TEST(test_old_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
