/*
 * The message for each of many broken shards with contiguous tokens, and the list of a directory's
 * shards.
 */
#include "tests/unit/shards.h"

/* ---- broken ones ---- */

/* Describing the shard, or otherwise opening it, fails with a message that contains @why. */
static void assert_refused(const char *path, const char *format, const char *expected)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	const struct shard_format *f = format ? shard_format(format) : NULL;
	struct shard_facts facts;
	struct fault fault = {.text = "accepted"};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	assert_true(fd >= 0);
	f = shard_describe(f, path, fd, &hint, &facts, &fault);
	if (f) {
		struct shard *shard = shard_open(f, path, fd, &hint, &facts, &fault);

		if (shard)
			fail_msg("accepted; should say: %s", expected);
	}
	assert_non_null(expected);
	if (!strstr(fault.text, expected))
		fail_msg("says:       %s\nshould say: %s", fault.text, expected);
	assert_null(strchr(fault.text, '\n'));
	close(fd);
}

#define NPY(descr, order, shape)                                                                   \
	"{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

/* Each is followed by 18 bytes. */
static const struct {
	const char *header, *why;
} bad_headers[] = {
	{NPY("'>u2'", "False", "(9,)"), "descr is '>u2', which is big-endian; must be <u2, <u4"},
	{NPY("'>i8'", "False", "(9,)"), "descr is '>i8', which is big-endian"},
	{NPY("'|O'", "False", "(9,)"), "descr is '|O', which is pickled objects"},
	{NPY("'<f4'", "False", "(9,)"), "descr is '<f4', which is not an integer type"},
	{NPY("'<f2'", "False", "(9,)"), "descr is '<f2', which is not an integer type"},
	{NPY("'|b1'", "False", "(9,)"), "descr is '|b1'; must be"},
	{NPY("'|S2'", "False", "(9,)"), "descr is '|S2'; must be"},
	{NPY("'<U1'", "False", "(9,)"), "descr is '<U1'; must be"},
	{NPY("'<M8[ns]'", "False", "(9,)"), "descr is '<M8[ns]'; must be"},
	{NPY("'=u2'", "False", "(9,)"), "descr is '=u2'; must be"},
	{NPY("''", "False", "(9,)"), "descr is ''; must be"},
	{NPY("'u2'", "False", "(9,)"), "descr is 'u2'; must be"},
	{NPY("[('a', '<u2')]", "False", "(9,)"), "descr is \"[('a', '<u2')]"},
	{NPY("('<u2', (3,))", "False", "(9,)"), "descr is \"('<u2', (3,))"},
	{NPY("2", "False", "(9,)"), "descr is \"2, 'fortran_order'"},
	{NPY("'<u2", "False", "(9,)"), "must be a comma, or } at the end"},
	{NPY("'\\x3cu2'", "False", "(9,)"), "descr is \"'\\x3cu2'"},
	{NPY("'<u2'", "True", "(3, 3)"), "fortran_order is True, so rows are not contiguous"},
	{NPY("'<u2'", "0", "(9,)"), "fortran_order is \"0, 'shape'"},
	{NPY("'<u2'", "None", "(9,)"), "fortran_order is \"None"},
	{NPY("'<u2'", "False", "()"), "shape has 0 dimensions; must have 1, or 2"},
	{NPY("'<u2'", "False", "(3, 3, 1)"), "shape has 3 dimensions"},
	{NPY("'<u2'", "False", "(9)"), "shape is \"(9), }"},
	{NPY("'<u2'", "False", "9"), "shape is \"9, }"},
	{NPY("'<u2'", "False", "[9]"), "shape is \"[9]"},
	{NPY("'<u2'", "False", "(-9,)"), "shape is \"(-9,)"},
	{NPY("'<u2'", "False", "(9.0,)"), "shape is \"(9.0,)"},
	{NPY("'<u2'", "False", "(0x9,)"), "shape is \"(0x9,)"},
	{NPY("'<u2'", "False", "(3 3)"), "shape is \"(3 3)"},
	{NPY("'<u2'", "False", "(9,,)"), "shape is \"(9,,)"},
	{NPY("'<u2'", "False", "(,)"), "shape is \"(,)"},
	{NPY("'<u2'", "False", "(9,"), "shape is \"(9,, }"},
	{NPY("'<u2'", "False", "(99999999999999999999999999,)"), "shape is \"(9999"},
	{NPY("'<u2'", "False",
		 "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"),
		"shape is \"(1,1"},
	{NPY("'<u2'", "False", "(8,)"),
		"shape is (8, 1) of u16; the file has 18 bytes after the header"},
	{NPY("'<u2'", "False", "(10,)"), "shape is (10, 1) of u16; the file has 18"},
	{NPY("'<u4'", "False", "(9,)"), "shape is (9, 1) of u32; the file has 18"},
	{NPY("'<u2'", "False", "(9223372036854775817,)"),
		"shape is (9223372036854775817, 1) of u16"},
	{NPY("'<u2'", "False", "(4294967296, 4294967296)"),
		"shape is (4294967296, 4294967296) of u16"},
	{NPY("'<u2'", "False", "(0, 9)"), "shape is (0, 9) of u16"},
	{NPY("'<u2'", "False", "(9, 0)"), "shape is (9, 0) of u16"},
	{"{'descr': '<u2', 'fortran_order': False}", "shape is missing"},
	{"{'descr': '<u2', 'shape': (9,)}", "fortran_order is missing"},
	{"{'fortran_order': False, 'shape': (9,)}", "descr is missing"},
	{"{}", "descr is missing"},
	{"{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (9,)}",
		"key 'descr' occurs twice"},
	{"{'descr': '<u2', 'order': False, 'shape': (9,)}", "key 'order' is unknown"},
	{"{'descr': '<u2' 'fortran_order': False, 'shape': (9,)}",
		"the text after an entry is \"'fortran_order'"},
	{"{'descr' '<u2', 'fortran_order': False, 'shape': (9,)}", "its key is \"'descr' '<u2'"},
	{"{descr: '<u2', 'fortran_order': False, 'shape': (9,)}", "its key is \"descr: '<u2'"},
	{"['<u2', False, (9,)]", "its beginning is \"['<u2'"},
	{"", "its beginning is \""},
	{NPY("'<u2'", "False", "(9,)") "x", "the text after } is \"x"},
	{"{'descr': '<u2', 'fortran_order': False, 'shape': (9,)",
		"must be a comma, or } at the end"},
	{"{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (9,)}",
		"descr is \"__import__"},
};

static void test_bad_headers(void **state)
{
	struct piece p;

	for (size_t i = 0; i < COUNT(bad_headers); i++) {
		put_npy(&p, 1 + (int)i % 3, bad_headers[i].header, few, COUNT(few), 2);
		assert_refused(files_put(*state, "a.npy", p.at, p.n), NULL, bad_headers[i].why);
	}
}

#define BYTES(text) text, sizeof(text) - 1

static const struct {
	const char *name, *format, *bytes;
	size_t n;
	const char *why;
} bad_files[] = {
	{"a.npy", NULL, BYTES("\x93NUMPY"), "is truncated"},
	{"a.npy", NULL, BYTES("\x93NUMPY\1\0\20"), "is truncated"},
	{"a.npy", NULL, BYTES("\x93NUMPY\0\0\0\0"),
		"NumPy version is 0.0; must be 1.0, 2.0 or 3.0"},
	{"a.npy", NULL, BYTES("\x93NUMPY\4\0\0\0\0\0"), "NumPy version is 4.0"},
	{"a.npy", NULL, BYTES("\x93NUMPY\1\1\0\0\0\0"), "NumPy version is 1.1"},
	{"a.npy", NULL, BYTES("\x93NUMPY\2\0\0\0"), "NumPy version is 2.0"},
	{"a.npy", NULL, BYTES("\x93NUMPY\1\0\377\377{}"),
		"header length is 65535; the file has only 2 bytes after it: it is truncated"},
	{"a.npy", NULL, BYTES("\x93NUMPY\2\0\377\377\377\377{}"),
		"header length is 4294967295; the file has only 2"},
	{"a.npy", "npy", BYTES("\1\2\3\4\5\6\7\10\11\12"), "it does not begin with \\x93NUMPY"},
	{"a.npy", "npy", "", 0, "it does not begin with \\x93NUMPY"},
	{"a.bin", "llmc", BYTES("\1\2\3\4"),
		"its size is 4 bytes; llm.c's header alone is 1024: the file is truncated"},
	{"a.bin", NULL, BYTES("\x88\xd8\x34\x01"),
		"its size is 4 bytes; llm.c's header alone is 1024: the file is truncated"},
	{"a.bin", NULL, BYTES("\1\2\3"),
		"3 bytes is not a multiple of 2 (dtype u16); the file is truncated"},
	{"a.ds", NULL, BYTES("\1\2\3"), "3 bytes is not a multiple of 2"},
	{"a.bin", NULL, BYTES("\x80\4\x95\2\0\0\0\0\0\0\0N."), "is a Python pickle, not a shard"},
	{"a.bin", NULL, BYTES("\x80\3}q\0X\1\0\0\0aq\1K\1s."), "is a Python pickle"},
	{"a.npy", NULL, BYTES("\x80\2]q\0(K\1K\2K\3K\4e."), "is a Python pickle"},
	{"a.bin", NULL, BYTES("PK\3\4\24\0\0\0"), "is a zip archive (.npz, or torch.save)"},
	{"a.bin", NULL, BYTES("\37\213\10\0\0\0\0\0\0\3"), "is gzip-compressed"},
	{"a.bin", NULL, BYTES("PAR1\25\4\25\20"), "is a Parquet file"},
	{"a.bin", NULL, BYTES("\x89HDF\r\n\x1a\n"), "is an HDF5 file"},
	{"a.bin", NULL, BYTES("BZh91AY&SY"), "is bzip2-compressed"},
	{"a.bin", NULL, BYTES("\4\"M\30\x64\x40"), "is lz4-compressed"},
	{"a.bin", NULL, BYTES("\12\0\0\0\0\0\0\0{\"a\":1234}\0\0"), "is a safetensors file"},
	{"a.bin", NULL, BYTES("version https://git-lfs.github.com/spec/v1\n"),
		"is a Git LFS pointer"},
	{"a.npy", NULL, BYTES("<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"),
		"is text, not a shard"},
	{"a.npy", NULL,
		BYTES("\x93NUMPX\1\0\x36\0{'descr': '<u2', 'fortran_order': False, 'shape': (1,), "
		      "}\1\0"),
		"it does not begin with \\x93NUMPY"},
	{"a.npy", NULL,
		BYTES("\0NUMPY\2\0\x36\0\0\0{'descr': '<u2', 'fortran_order': False, 'shape': "
		      "(1,), }\1\0"),
		"it does not begin with \\x93NUMPY"},
	{"a.json", NULL, BYTES("{}"), "has no known format"},
	{"a.ds.index", NULL, BYTES("\0\0\0\0\0\0\0\0"), "is a datatrove index, not a shard"},
	{"a.csv.gz", NULL, BYTES("\37\213\10\0\0\0\0\0\0\3"), "is gzip-compressed"},
	{"a", NULL, "", 0, "has no known format"},
};

static void test_bad_files(void **state)
{
	static const struct {
		const char *link, *shard;
	} lost[] = {{"l.idx", "l.bin"}, {"l.ds.index", "l.ds"}, {"m.ds.metadata", "m.ds"}};

	for (size_t i = 0; i < COUNT(bad_files); i++) {
		const char *path =
			files_put(*state, bad_files[i].name, bad_files[i].bytes, bad_files[i].n);

		assert_refused(path, bad_files[i].format, bad_files[i].why);
		assert_int_equal(unlink(path), 0);
	}
	assert_int_equal(mkdir(files_path(*state, "d.npy"), 0755), 0);
	assert_refused(
		files_path(*state, "d.npy"), NULL, "is not a regular file; a shard must be one");
	/* A dangling link is a lost side file. */
	for (size_t i = 0; i < COUNT(lost); i++) {
		assert_int_equal(symlink("nowhere", files_path(*state, lost[i].link)), 0);
		assert_refused(files_put(*state, lost[i].shard, "\1\0\2\0", 4), NULL,
			"is a link to a missing file; restore that file, or remove the link");
	}
	assert_int_equal(mkfifo(files_path(*state, "f.bin"), 0644), 0);
	assert_refused(files_path(*state, "f.bin"), NULL, "is not a regular file");
}

static const struct {
	uint64_t magic, version, count;
	size_t stored, bytes;
	const char *why;
} bad_llmc[] = {
	{20240522, 1, 9, 9, 2, "is an llm.c evaluation file (magic 20240522)"},
	{20240520, 7, 9, 9, 2, "version is 7; must be 1 for llm.c's GPT-2 magic"},
	{20240520, 0, 9, 9, 2, "version is 0; must be 1"},
	{20240801, 1, 9, 9, 4, "version is 1; must be 7 for llm.c's Llama-3 magic"},
	{20240520, 1, 8, 9, 2,
		"token count is 8 (u16), which makes a file of 1040 bytes; the file has 1042"},
	{20240520, 1, 10, 9, 2,
		"token count is 10 (u16), which makes a file of 1044 bytes; the file has 1042"},
	{20240520, 1, 9, 9, 4,
		"token count is 9 (u16), which makes a file of 1042 bytes; the file has 1060"},
	{20240801, 7, 9, 9, 2,
		"token count is 9 (u32), which makes a file of 1060 bytes; the file has 1042"},
	{20240520, 1, 0x80000000, 9, 2, "token count is -2147483648; must be 0 to 2147483647"},
	{20240520, 1, 0x7fffffff, 9, 2,
		"token count is 2147483647 (u16), which makes a file of 4294968318 bytes"},
	{20240801, 7, 0xffffffff, 9, 4, "token count is -1; must be"},
};

static void test_bad_llmc(void **state)
{
	struct piece p;

	for (size_t i = 0; i < COUNT(bad_llmc); i++) {
		put_llmc(&p, bad_llmc[i].magic, bad_llmc[i].version, bad_llmc[i].count,
			bad_llmc[i].stored, bad_llmc[i].bytes);
		assert_refused(files_put(*state, "a.bin", p.at, p.n), NULL, bad_llmc[i].why);
	}
	/* With a wrong magic too, the header is not served as tokens. */
	put_llmc(&p, 20240519, 1, 9, 9, 2);
	assert_refused(
		files_put(*state, "a.bin", p.at, p.n), NULL, "magic is 20240519; must be 20240520");
	put_llmc(&p, 0, 0, 9, 9, 4);
	assert_refused(files_put(*state, "a.bin", p.at, p.n), NULL, "magic is 0; must be 20240520");
	put_llmc(&p, __builtin_bswap32(20240801), 0x7000000, 0x9000000, 9, 4);
	assert_refused(
		files_put(*state, "a.bin", p.at, p.n), NULL, ", which is big-endian; must be");
	put_llmc(&p, 20240519, 1, 9, 9, 2);
	assert_refused(files_put(*state, "a.bin", p.at, p.n), "llmc",
		"magic is 20240519; must be 20240520");
	p.n = 1023;
	assert_refused(files_put(*state, "a.bin", p.at, p.n), "llmc", "its size is 1023 bytes");
}

static const struct {
	size_t bytes;
	const uint64_t *ends;
	const char *metadata, *why;
} bad_ds[] = {
	{2, ENDS(3, 2, 9), NULL,
		".ds.index: document 1 ends at token 2, before the previous one (3)"},
	{2, ENDS(3, 10), NULL,
		"the last document ends at token 10; the file has 9 tokens of 2 bytes"},
	{2, ENDS(3, 1ull << 63), NULL, "the last document ends at token 9223372036854775808"},
	{2, ENDS(10, 9), NULL, ".ds.index: document 0 ends at token 10; the file has 9"},
	{2, NULL, "gpt2|3\n9\n", "token size, line 1, is 3; must be 2 or 4"},
	{2, NULL, "gpt2|0\n9\n", "token size, line 1, is 0"},
	{2, NULL, "gpt2|18446744073709551616\n9\n",
		"token size, line 1, is '18446744073709551616'; must be 2 or 4"},
	{2, NULL, "gpt2|-2\n9\n", "token size, line 1, is '-2'; must be 2 or 4"},
	{2, NULL, "gpt2|\n9\n", "token size, line 1, is ''; must be 2 or 4"},
	{2, NULL, "", "its 0 bytes have no line 2, the token count"},
	{2, NULL, "gpt2|2", "its 6 bytes have no line 2, the token count"},
	{2, NULL, "gpt2|2\n\33[31m\7\n", "token count, line 2, is '?[31m?'"},
	{2, ENDS(3, 7), NULL,
		"the last document ends at token 7; the file has 9 tokens of 2 bytes"},
	{2, NULL, "gpt2|4\n9\n", "18 bytes is not a multiple of 4, the token size in .ds.metadata"},
	{2, NULL, "gpt2|2\n8\n",
		".ds.metadata: token count is 8; the file has 9 tokens of 2 bytes"},
	{4, NULL, "gpt2|2\n9\n", "token count is 9; the file has 18 tokens of 2 bytes"},
	{2, NULL, "gpt2|2\n-9\n", "token count, line 2, is '-9'; must be an integer"},
	{2, NULL, "gpt2|2\nmany\n", "token count, line 2, is 'many'"},
	{2, NULL, "gpt2|2\n\n", "token count, line 2, is ''"},
	{2, NULL, "gpt2|2\n99999999999999999999999\n",
		"token count, line 2, is '99999999999999999999999'"},
	{2, ENDS(12), "gpt2|2\n9\n", "the last document ends at token 12; the file has 9"},
};

static void test_bad_datatrove(void **state)
{
	char *large = malloc(1 << 17);

	for (size_t i = 0; i < COUNT(bad_ds); i++)
		assert_refused(put_ds(*state, bad_ds[i].bytes, bad_ds[i].ends, bad_ds[i].metadata),
			NULL, bad_ds[i].why);
	put_ds(*state, 2, NULL, NULL);
	files_put(*state, "a.ds.index", "1234567", 7);
	assert_refused(
		files_path(*state, "a.ds"), NULL, ".ds.index: 7 bytes is not a multiple of 8");
	put_ds(*state, 2, NULL, NULL);
	assert_int_equal(mkdir(files_path(*state, "a.ds.index"), 0755), 0);
	assert_refused(files_path(*state, "a.ds"), NULL, "a.ds.index: is not a regular file");
	assert_int_equal(rmdir(files_path(*state, "a.ds.index")), 0);
	assert_non_null(large);
	memset(large, 'x', 1 << 17);
	files_put(*state, "a.ds.metadata", large, 1 << 17);
	assert_refused(files_path(*state, "a.ds"), NULL,
		".ds.metadata: its size is 131072 bytes; must be at most 65536");
	free(large);
}

/* A small index is checked when its shard is described, a larger one when it is opened. */
static void test_late_datatrove(void **state)
{
	enum { TOKENS = 20000 };
	static const uint64_t documents[] = {1000, TOKENS};
	static uint8_t tokens[2 * TOKENS], ends[8 * TOKENS];
	const struct shard_hint hint = {.type = SHARD_U16};

	unlink(files_path(*state, "a.ds.metadata"));
	for (size_t i = 0; i < COUNT(documents); i++) {
		struct shard_facts facts;
		struct fault fault;

		for (uint64_t d = 0; d < documents[i]; d++) {
			uint64_t end = htole64(d == 500 ? 1 : (d + 1) * (TOKENS / documents[i]));

			memcpy(ends + 8 * d, &end, 8);
		}
		files_put(*state, "a.ds.index", ends, 8 * documents[i]);
		const char *path = files_put(*state, "a.ds", tokens, sizeof(tokens));
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		const struct shard_format *format =
			shard_describe(NULL, path, fd, &hint, &facts, &fault);

		assert_int_equal(format != NULL, i > 0);
		assert_true(!format || !shard_open(format, path, fd, &hint, &facts, &fault));
		assert_non_null(
			strstr(fault.text, ".ds.index: document 500 ends at token 1, before"));
		close(fd);
	}
}

/* ---- side files ---- */

static void assert_listed(struct files *f, const char *expected)
{
	struct fault fault;
	char names[512] = "";
	struct shard_list list;

	if (!shard_list_read(&list, f->directory, &fault))
		fail_msg("%s", fault.text);
	for (uint64_t i = 0; i < list.count; i++) {
		strcat(names, shard_list_name(&list, i));
		strcat(names, " ");
	}
	assert_string_equal(names, expected);
	shard_list_free(&list);
}

static void test_companions(void **state)
{
	struct files *f = *state;
	struct shard_list list;
	struct fault fault;
	char whole[512];

	assert_int_equal(mkdir(files_path(f, "sub"), 0755), 0);
	files_put(f, "0_a.ds", "", 0);
	files_put(f, "0_a.ds.index", "", 0);
	files_put(f, "0_a.ds.loss", "", 0);
	files_put(f, "0_a.ds.metadata", "", 0);
	files_put(f, "a.ds.metadata", "", 0); /* merged, of all shards */
	files_put(f, "sub/b.ds.zst", "", 0);
	files_put(f, "sub/b.ds.index", "", 0);
	files_put(f, "part-0.npy", "", 0);
	files_put(f, "part-0.csv.gz", "", 0);
	assert_listed(f, "0_a.ds part-0.npy sub/b.ds.zst ");
	files_put(f, "sub/c.ds.index", "", 0);
	assert_false(shard_list_read(&list, f->directory, &fault));
	snprintf(whole, sizeof(whole),
		"%s/sub/c.ds.index: is a datatrove index, but its shard (.ds) is missing; add the "
		"shard, or move this file away",
		f->directory);
	assert_string_equal(fault.text, whole);
	assert_int_equal(unlink(files_path(f, "sub/c.ds.index")), 0);
	assert_int_equal(unlink(files_path(f, "0_a.ds")), 0);
	assert_false(shard_list_read(&list, f->directory, &fault));
	assert_non_null(strstr(fault.text, "0_a.ds.index: is a datatrove index"));
	assert_int_equal(unlink(files_path(f, "0_a.ds.index")), 0);
	assert_int_equal(unlink(files_path(f, "0_a.ds.loss")), 0);
	assert_listed(
		f, "part-0.npy sub/b.ds.zst "); /* metadata is for a directory and those below it */
}

/* A prefix of a store without shards. */
static void test_empty_lists_are_split(void **state)
{
	struct shard_list list = {.root = NULL};
	struct fault fault;
	uint64_t sides = 1;

	(void)state;
	assert_true(shard_list_split(&list, &sides, &fault));
	assert_true(list.count == 0 && sides == 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_bad_headers),
		TEST(test_bad_files),
		TEST(test_bad_llmc),
		TEST(test_bad_datatrove),
		TEST(test_late_datatrove),
		TEST(test_companions),
		TEST(test_empty_lists_are_split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
