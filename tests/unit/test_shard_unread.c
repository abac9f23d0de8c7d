/*
 * Reads that fail while a shard is recognised, described and opened: for each of them the fault has
 * its errno. The daemon retries because of the errno; without it a transient disk error would count
 * as a changed shard.
 */
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"

#include <sys/syscall.h>
#include <zlib.h>
#include <zstd.h>

enum { TOKENS = 1000, READS_MOST = 200 };

/* The reads that fail, of those that follow: @from (0: the first) to @to. */
static unsigned reads, from, to;

static bool fails(void)
{
	unsigned i = reads++;

	errno = EIO;
	return i >= from && i < to;
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at)
{
	return fails() ? -1 : syscall(SYS_pread64, fd, bytes, n, at);
}

int stat(const char *path, struct stat *st)
{
	return fails() ? -1 : fstatat(AT_FDCWD, path, st, 0);
}

static void fail_reads(unsigned first, unsigned end)
{
	reads = 0;
	from = first;
	to = end;
}

/* NULL: @fault. */
static struct shard *try_open(
	const char *path, const struct shard_format *format, int *fd, struct fault *fault)
{
	const struct shard_hint hint = {.type = SHARD_U16, .documents = true, .loss_mask = true};
	struct shard_facts facts;

	fault->code = FAULT_NONE;
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	format = shard_describe(format, path, *fd, &hint, &facts, fault);
	return format ? shard_open(format, path, *fd, &hint, &facts, fault) : NULL;
}

static void check(const char *path, const char *name, unsigned first, unsigned end, bool known)
{
	const struct shard_format *format = shard_format(name);
	struct fault fault;
	int fd;

	fail_reads(first, end);
	struct shard *shard = try_open(path, known ? format : NULL, &fd, &fault);

	if (shard)
		assert_ptr_equal(shard->format, format);
	else if (fault.code != FAULT_IO || fault.error != EIO)
		fail_msg("%s, reads %u to %u: code %d, error %d: %s", name, first, end, fault.code,
			fault.error, fault.code ? fault.text : "");
	shard_close(shard);
	close(fd);
}

/* Fails each read alone, and with all later ones. */
static void check_all(const char *path, const char *name)
{
	for (int known = 0; known <= 1; known++) {
		unsigned n;

		check(path, name, READS_MOST, READS_MOST, known);
		n = reads;
		assert_in_range(n, 1, READS_MOST);
		for (unsigned i = 0; i < n; i++) {
			check(path, name, i, i + 1, known);
			check(path, name, i, i + 3, known);
			check(path, name, i, READS_MOST, known);
		}
	}
	fail_reads(0, 0);
}

static void fill(uint16_t *tokens)
{
	for (unsigned i = 0; i < TOKENS; i++)
		tokens[i] = (uint16_t)(i * 7919 % 50000);
}

static void npy(void **state)
{
	char file[128 + 2 * TOKENS];
	uint16_t tokens[TOKENS];

	memset(file, ' ', 128);
	memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
	memcpy(file + 10, "{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }", 60);
	file[127] = '\n';
	fill(tokens);
	memcpy(file + 128, tokens, sizeof(tokens));
	files_put(*state, "a.npy", file, sizeof(file));
	check_all((*(struct files **)state)->path, "npy");
}

static void flat_with_bounds(void **state)
{
	uint16_t tokens[TOKENS];
	char path[128];

	fill(tokens);
	snprintf(path, sizeof(path), "%s", files_put(*state, "a.bin", tokens, sizeof(tokens)));

	gzFile list = gzopen(files_path(*state, "a.csv.gz"), "wb");

	assert_true(list && gzputs(list, "0,400\n400,1000\n") > 0 && gzclose(list) == Z_OK);
	check_all(path, "flat");
}

static void megatron(void **state)
{
	uint8_t index[34 + 4 + 8 + 16] = "MMIDIDX\0\0\1";
	uint16_t tokens[TOKENS];
	char path[128];

	index[17] = 8; /* u16 */
	index[18] = 1; /* sequences */
	index[26] = 2; /* boundaries of documents */
	index[34] = TOKENS & 0xff;
	index[35] = TOKENS >> 8;
	index[54] = 1;
	fill(tokens);
	files_put(*state, "a.idx", index, sizeof(index));
	snprintf(path, sizeof(path), "%s", files_put(*state, "a.bin", tokens, sizeof(tokens)));
	check_all(path, "megatron");
}

static void datatrove(void **state)
{
	uint16_t tokens[TOKENS];
	uint64_t ends[] = {400, TOKENS};
	char path[128];

	fill(tokens);
	files_put(*state, "a.ds.index", ends, sizeof(ends));
	files_put(*state, "a.ds.metadata", "gpt2|2\n1000\n", 12);
	snprintf(path, sizeof(path), "%s", files_put(*state, "a.ds", tokens, sizeof(tokens)));
	check_all(path, "datatrove");
}

static void compressed(void **state)
{
	uint16_t tokens[TOKENS];
	char packed[4 * TOKENS];

	fill(tokens);
	files_put(*state, "a.bin.zst", packed,
		ZSTD_compress(packed, sizeof(packed), tokens, sizeof(tokens), 3));
	check_all((*(struct files **)state)->path, "flat");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(npy),
		TEST(flat_with_bounds),
		TEST(megatron),
		TEST(datatrove),
		TEST(compressed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
