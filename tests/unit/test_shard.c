/*
 * Shards with contiguous tokens: flat, NumPy, llm.c, datatrove. Shows how good ones are read.
 * tests/python reads files of the real writers.
 */
#include "tests/unit/shards.h"

/* ---- good ones ---- */

static void test_types(void **state)
{
	static const struct {
		const char *descr;
		size_t bytes;
		uint32_t served;
		bool plain;
	} types[] = {
		{"|u1", 1, 2, false},
		{"|i1", 1, 2, false},
		{"<u2", 2, 2, true},
		{"<i2", 2, 2, false},
		{"<u4", 4, 4, true},
		{"<i4", 4, 4, true},
		{"<u8", 8, 4, false},
		{"<i8", 8, 4, false},
	};
	struct piece p;
	char header[128];
	int fd;

	for (size_t i = 0; i < COUNT(types); i++)
		for (int version = 1; version <= 3; version++)
			for (int type = 0; type < 3; type++) {
				const struct shard_hint hint = {.has_type = type > 0,
					.type = type == 2 ? SHARD_U32 : SHARD_U16};
				uint32_t served =
					type == 1 && types[i].bytes == 8 ? 2 : types[i].served;

				snprintf(header, sizeof(header),
					"{'descr': '%s', 'fortran_order': False, 'shape': (9,), }",
					types[i].descr);
				put_npy(&p, version, header, few, COUNT(few), types[i].bytes);
				struct shard *shard = open_shard(
					files_put(*state, "a.npy", p.at, p.n), NULL, &hint, &fd);

				assert_string_equal(shard->format->name, "npy");
				assert_int_equal(
					shard_type_bytes(shard->facts.type), types[i].bytes);
				assert_int_equal(shard->facts.token_bytes, served);
				assert_int_equal(shard->facts.plain, types[i].plain);
				assert_int_equal(shard->facts.data_at % 64, 0);
				assert_int_equal(shard->facts.documents, SHARD_UNKNOWN);
				assert_tokens(shard, few, COUNT(few));
				shard_close(shard);
				close(fd);
			}
}

/* The header is a Python literal, in any spelling. */
static void test_headers(void **state)
{
	static const struct {
		const char *header;
		uint64_t window, sample;
	} headers[] = {
		{"{'shape':(9,),'fortran_order':False,'descr':'<u2'}", 0, 0},
		{"{\"shape\" : ( 9 , ) , \"fortran_order\" : True , \"descr\" : \"<u2\" }", 9, 0},
		{" { 'descr': '<u2', 'fortran_order': False, 'shape': (9L,), } ", 0, 0},
		{"{'descr': '<u2', 'fortran_order': False, 'shape': (3, 3), }", 0, 0},
		{"{'descr': '<u2', 'fortran_order': False, 'shape': (3, 3), }", 3, 3},
		{"{'descr': '<u2', 'fortran_order': False, 'shape': (3, 3,)}", 4, 0},
		{"{'descr': '<u2', 'fortran_order': False, 'shape': (9, 1)}", 1, 1},
	};
	struct piece p;
	int fd;

	for (size_t i = 0; i < COUNT(headers); i++) {
		const struct shard_hint hint = {.window_tokens = headers[i].window};

		put_npy(&p, 1, headers[i].header, few, COUNT(few), 2);
		struct shard *shard =
			open_shard(files_put(*state, "a.npy", p.at, p.n), NULL, &hint, &fd);

		assert_int_equal(shard->facts.sample_tokens, headers[i].sample);
		assert_true(shard->facts.plain);
		assert_tokens(shard, few, COUNT(few));
		shard_close(shard);
		close(fd);
	}
}

static void test_llmc(void **state)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	struct piece p;
	int fd;

	for (size_t bytes = 2; bytes <= 4; bytes += 2) {
		put_llmc(&p, bytes == 2 ? 20240520 : 20240801, bytes == 2 ? 1 : 7, COUNT(few),
			COUNT(few), bytes);
		struct shard *shard =
			open_shard(files_put(*state, "a.bin", p.at, p.n), NULL, &hint, &fd);

		assert_string_equal(shard->format->name, "llmc");
		assert_int_equal(shard->facts.token_bytes, bytes);
		assert_int_equal(shard->facts.data_at, 1024);
		assert_true(shard->facts.plain);
		assert_tokens(shard, few, COUNT(few));
		shard_close(shard);
		close(fd);
	}
}

/* A compressed file need not have .bin in its name. */
static void test_bare_names(void **state)
{
	static const char *const names[] = {
		"shard.zst", "shard.00001.zst", "s.bin.zst", "s.npy.zstd"};
	const struct shard_hint hint = {.type = SHARD_U16};
	static const char raw[] =
		"\x28\xb5\x2f\xfd\x20\4\x21\0\0abcd"; /* a frame of one raw block */
	struct shard_facts facts;
	struct fault fault;
	int fd;

	for (size_t i = 0; i < COUNT(names); i++) {
		struct shard *shard = open_shard(
			files_put(*state, names[i], raw, sizeof(raw) - 1), NULL, &hint, &fd);

		assert_string_equal(shard->format->name, "flat");
		assert_tokens(shard, (uint64_t[]){'a' | 'b' << 8, 'c' | 'd' << 8}, 2);
		shard_close(shard);
		close(fd);
	}
	fd = open(files_put(*state, "text.jsonl.zst", raw, sizeof(raw) - 1), O_RDONLY | O_CLOEXEC);
	assert_null(
		shard_describe(NULL, ((struct files *)*state)->path, fd, &hint, &facts, &fault));
	assert_non_null(strstr(fault.text, "has no known format"));
	close(fd);
}

static void test_flat(void **state)
{
	struct piece p = {.n = 0};
	int fd;

	for (size_t i = 0; i < 8; i++)
		piece_number(&p, few[i], 2);
	for (int wide = 0; wide < 2; wide++) {
		const struct shard_hint hint = {
			.type = wide ? SHARD_U32 : SHARD_U16, .has_type = true};
		struct shard *shard = open_shard(
			files_put(*state, wide ? "a.npy" : "a.bin", p.at, p.n), NULL, &hint, &fd);

		assert_string_equal(shard->format->name, "flat");
		assert_true(shard->facts.plain);
		assert_tokens(shard,
			wide ? (uint64_t[]){65536, 2 | 127 << 16, 3 | 50 << 16, 99 | 127 << 16}
			     : few,
			wide ? 4 : 8);
		shard_close(shard);
		close(fd);
	}
	const struct shard_hint hint = {.type = SHARD_U16};
	struct shard *shard = open_shard(files_put(*state, "empty.bin", "", 0), NULL, &hint, &fd);

	assert_int_equal(shard->facts.tokens, 0);
	assert_string_equal(shard->facts.note, "has no tokens");
	shard_close(shard);
	close(fd);
}

/* ---- datatrove ---- */

static void test_datatrove(void **state)
{
	static const struct {
		size_t bytes;
		const char *metadata;
		bool index;
		enum shard_type config; /* the metadata overrides it */
	} shards[] = {
		{2, "gpt2|2\n9\n9 T", true, SHARD_U32},
		{4, "gpt2|4\n9\n9 T", true, SHARD_U16},
		{4, "Unknown Tokenizer|4|4\n9\n9 T", true, SHARD_U16},
		{4, "a|b|2|4\r\n9\r\n9 T\r\n", false, SHARD_U16},
		{2, "gpt2\n9\n9 T", true, SHARD_U32},
		{4, "gpt2\n9\n9 T", false, SHARD_U16},
		{4, "org/name|v2\n9", false, SHARD_U16},
		{4, NULL, true, SHARD_U16},
		{2, NULL, true, SHARD_U32},
		{2, NULL, false, SHARD_U16},
		{4, NULL, false, SHARD_U32},
	};
	int fd;

	for (size_t i = 0; i < COUNT(shards); i++) {
		const struct shard_hint hint = {.type = shards[i].config};
		const char *path = put_ds(*state, shards[i].bytes,
			shards[i].index ? ENDS(3, 3, 4, 9) : NULL, shards[i].metadata);
		struct shard *shard = open_shard(path, NULL, &hint, &fd);
		uint32_t at[8];
		struct fault fault;

		assert_string_equal(shard->format->name, "datatrove");
		assert_int_equal(shard->facts.token_bytes, shards[i].bytes);
		assert_true(shard->facts.plain);
		assert_tokens(shard, few, COUNT(few));
		assert_int_equal(shard->facts.documents, shards[i].index ? 4 : SHARD_UNKNOWN);
		assert_int_equal(
			shard_documents(shard, 0, 9, at, 8, &fault), shards[i].index ? 2 : 0);
		shard_close(shard);
		close(fd);
	}
}

static void test_documents(void **state)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	int fd;
	struct shard *shard = open_shard(
		put_ds(*state, 2, ENDS(0, 0, 3, 3, 4, 7, 9), NULL), "datatrove", &hint, &fd);
	uint32_t at[8];
	struct fault fault;

	assert_int_equal(shard->facts.documents, 7);
	assert_int_equal(shard_documents(shard, 0, 9, at, 8, &fault), 3);
	assert_int_equal(at[0], 3);
	assert_int_equal(at[1], 4);
	assert_int_equal(at[2], 7);
	assert_int_equal(shard_documents(shard, 0, 9, at, 2, &fault), 2);
	assert_int_equal(
		shard_documents(shard, 0, 7, at, 8, &fault), 2); /* 7 is the window's own end */
	assert_int_equal(shard_documents(shard, 0, UINT64_MAX, at, 8, &fault), 3);
	assert_int_equal(shard_documents(shard, 3, 3, at, 8, &fault), 1);
	assert_int_equal(at[0], 1);
	assert_int_equal(
		shard_documents(shard, 7, 2, at, 8, &fault), 0); /* the tail is one document */
	assert_int_equal(shard_documents(shard, 9, 1, at, 8, &fault), 0);
	shard_close(shard);
	close(fd);
}

/* ---- tokens that cannot be served ---- */

static void test_range(void **state)
{
	static const struct {
		const char *descr;
		size_t bytes;
		uint64_t value;
		bool narrow; /* the config sets u16 */
		const char *why;
	} tokens[] = {
		{"|i1", 1, (uint64_t)-1, false,
			"token 4 is -1; must be 0 to 65535; tokenize the shard again"},
		{"<i2", 2, (uint64_t)-2, false,
			"token 4 is -2; must be 0 to 65535; tokenize the shard again"},
		{"<i8", 8, (uint64_t)-100, false,
			"token 4 is -100; must be 0 to 4294967295; tokenize the shard again"},
		{"<i8", 8, 1ull << 32, false, "token 4 is 4294967296; must be 0 to 4294967295"},
		{"<i8", 8, 65536, true, "token 4 is 65536; must be 0 to 65535, or set dtype: u32"},
		{"<u8", 8, UINT64_MAX, false,
			"token 4 is 18446744073709551615; must be 0 to 4294967295"},
	};
	uint64_t values[COUNT(few)];
	uint32_t out[COUNT(few)];
	char header[128];
	struct fault fault;
	struct piece p;
	int fd;

	for (size_t i = 0; i < COUNT(tokens); i++) {
		const struct shard_hint hint = {.type = SHARD_U16, .has_type = tokens[i].narrow};

		memcpy(values, few, sizeof(few));
		values[4] = tokens[i].value;
		snprintf(header, sizeof(header),
			"{'descr': '%s', 'fortran_order': False, 'shape': (9,), }",
			tokens[i].descr);
		put_npy(&p, 1, header, values, COUNT(few), tokens[i].bytes);
		struct shard *shard =
			open_shard(files_put(*state, "a.npy", p.at, p.n), NULL, &hint, &fd);

		assert_true(shard_read(shard, 0, 4, out, &fault));
		assert_true(shard_read(shard, 5, 4, out, &fault));
		assert_false(shard_read(shard, 2, 5, out, &fault));
		assert_false(shard_try(shard, shard_find(shard, 2), 5, out));
		assert_int_equal(fault.code, FAULT_TOKEN);
		assert_string_equal(fault.text, tokens[i].why);
		shard_close(shard);
		close(fd);
	}
}

static void test_cut_while_open(void **state)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	uint16_t out[100];
	struct fault fault;
	char data[200] = {0};
	int fd;
	const char *path = files_put(*state, "a.bin", data, sizeof(data));
	struct shard *shard = open_shard(path, NULL, &hint, &fd);

	assert_int_equal(truncate(path, 100), 0);
	assert_true(shard_read(shard, 0, 50, out, &fault));
	assert_false(shard_try(shard, shard_find(shard, 0), 51, out));
	assert_false(shard_read(shard, 0, 51, out, &fault));
	assert_int_equal(fault.error, EIO);
	assert_string_equal(fault.text,
		"was truncated: it ends at byte 100, but had 200 bytes when it was opened");
	shard_close(shard);
	close(fd);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_types),
		TEST(test_headers),
		TEST(test_llmc),
		TEST(test_flat),
		TEST(test_bare_names),
		TEST(test_datatrove),
		TEST(test_documents),
		TEST(test_range),
		TEST(test_cut_while_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
