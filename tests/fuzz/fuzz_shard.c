/*
 * A libFuzzer target for the format that the environment's FORMAT names: the input becomes a shard and what
 * lies beside it, and is described, opened and read. Whatever it says, nothing is read that is not there, and
 * reading the same tokens in one piece or in many is the same.
 *
 * An input is, for each file beside the shard, its length (u16; 65535: there is none) and its bytes; the rest
 * is the shard.
 */
#include "../../daemon/shard/shard.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUDGET = 1 << 20, TOKENS_MOST = 1 << 18, ABSENT = 65535 };

static const struct target {
	const char *name, *format; /* NULL: recognised */
	const char *shard;
	const char *beside[2];
} targets[] = {
	{"auto", NULL, "a.bin", {NULL}},
	{"zstd", "flat", "a.bin.zst", {NULL}},
	{"npy", "npy", "a.npy", {NULL}},
	{"llmc", "llmc", "a.bin", {NULL}},
	{"megatron", "megatron", "a.bin", {"a.idx"}},
	{"arrow", "arrow", "a.arrow", {NULL}},
	{"datatrove", "datatrove", "a.ds", {"a.ds.metadata", "a.ds.index"}},
	{"mds", "mds", "shard.00000.mds", {"index.json"}},
};

static const struct target *target;
static char directory[64] = "/dev/shm/fuzz-shard-XXXXXX";

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void remove_all(void)
{
	for (const struct target *t = target; t; t = NULL) {
		const char *names[] = {t->shard, t->beside[0], t->beside[1]};

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			char path[PATH_MAX];

			snprintf(path, sizeof(path), "%s/%s", directory, names[i] ? names[i] : "");
			if (names[i])
				unlink(path);
		}
	}
	rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *name = getenv("FORMAT");

	(void)argc, (void)argv;
	for (size_t i = 0; name && i < sizeof(targets) / sizeof(targets[0]); i++)
		if (strcmp(targets[i].name, name) == 0)
			target = &targets[i];
	if (!target || !mkdtemp(directory)) {
		fprintf(stderr, "fuzz-shard: FORMAT must name a target, and /dev/shm be writable\n");
		exit(2);
	}
	atexit(remove_all);
	return 0;
}

static void put(const char *name, const uint8_t *data, size_t n, char *path)
{
	snprintf(path, PATH_MAX, "%s/%s", directory, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, data, n) != (ssize_t)n)
		abort();
	close(fd);
}

static void put_files(const uint8_t *data, size_t size, char *path)
{
	for (int i = 0; i < 2 && target->beside[i]; i++) {
		size_t n = size < 2 ? ABSENT : bytes_u16(data), here = size < 2 ? size : size - 2;

		data += size - here;
		if (n == ABSENT) {
			snprintf(path, PATH_MAX, "%s/%s", directory, target->beside[i]);
			unlink(path);
			n = 0;
		} else {
			n = n < here ? n : here;
			put(target->beside[i], data, n, path);
		}
		data += n;
		size = here - n;
	}
	put(target->shard, data, size, path);
}

/* Documents ascend, lie inside, and are the same however many are asked for at a time. */
static void read_documents(const struct shard *shard)
{
	static uint32_t all[TOKENS_MOST], one[1];
	uint64_t tokens = shard->facts.tokens;
	char why[512];
	int64_t n = shard_documents(shard, 0, tokens, all, TOKENS_MOST, why, sizeof(why));
	uint64_t at = 0;

	for (int64_t i = 0; i < n; i++) {
		assert(all[i] > at && all[i] < tokens);
		if (i < 64)
			assert(shard_documents(shard, at, tokens - at, one, 1, why, sizeof(why)) == 1 &&
				at + one[0] == all[i]);
		at = all[i];
	}
}

static void read_tokens(const struct shard *shard, const uint8_t *data, size_t size)
{
	static char all[TOKENS_MOST * 4], some[TOKENS_MOST * 4];
	uint64_t tokens = shard->facts.tokens, width = shard->facts.token_bytes;
	uint64_t n = tokens < TOKENS_MOST ? tokens : TOKENS_MOST, most = n < 100 ? n : 100;
	char why[512] = "";
	int error = 0;
	bool fine = shard_read(shard, 0, n, all, &error, why, sizeof(why));

	assert(fine || (error != 0 && why[0] && !strchr(why, '\n')));
	for (size_t i = 0; i + 4 <= size && i < 64 && n > 0; i += 4) {
		uint64_t at = bytes_u16(data + i) % n, count = bytes_u16(data + i + 2) % (most + 1);

		count = count < n - at ? count : n - at;
		bool here = shard_read(shard, at, count, some, &error, why, sizeof(why));

		assert(here || !fine);
		assert(!fine || memcmp(some, all + at * width, count * width) == 0);
	}
	assert(!shard_read(shard, tokens, 1, some, &error, why, sizeof(why)));
	assert(tokens == 0 || !shard_read(shard, tokens - 1, 2, some, &error, why, sizeof(why)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shard_hint hint = {.type = size % 2 ? SHARD_U32 : SHARD_U16, .has_type = size % 3 == 0};
	const struct shard_format *format = target->format ? shard_format(target->format) : NULL;
	struct shard_facts facts;
	char path[PATH_MAX], why[512] = "";
	int fd;

	hint.window_tokens = size % 5;
	hint.budget_bytes = BUDGET;
	put_files(data, size, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		abort();
	format = shard_describe(format, path, fd, &hint, &facts, why, sizeof(why));
	assert(format || (why[0] && !strchr(why, '\n')));
	if (format) {
		assert(facts.token_bytes == 2 || facts.token_bytes == 4);
		assert(!facts.plain || facts.data_at + facts.tokens * facts.token_bytes <= size);
		struct shard *shard = shard_open(format, path, fd, &hint, &facts, why, sizeof(why));

		assert(shard || (why[0] && !strchr(why, '\n')));
		if (shard) {
			assert(shard->facts.tokens == facts.tokens);
			read_documents(shard);
			read_tokens(shard, data, size);
		}
		shard_close(shard);
	}
	close(fd);
	return 0;
}
