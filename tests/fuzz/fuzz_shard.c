/*
 * A libFuzzer target for the format in the environment variable FORMAT: the input becomes a shard
 * and its side files, which are described, opened and read. No read may leave the files, and the
 * same tokens must be returned by one read or by many.
 *
 * An input is: failures (fail.h), two bytes of hints, a change (fail.h), for each side file its
 * length (u16; 65535: there is none) and its bytes; the rest is the shard. A .csv.gz is in it
 * uncompressed, unless it begins with gzip's magic.
 */
#include "daemon/shard/bytes.h"
#include "daemon/shard/format.h"
#include "daemon/shard/shard.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define MASKS "masks"

enum { BUDGET = 1 << 20, TOKENS_MOST = 1 << 18, ABSENT = 65535 };

static const struct target {
	const char *name, *format; /* NULL: recognised */
	const char *shard;
	const char *side[2];
	bool annotations; /* request bounds and loss masks; masks are in MASKS */
} targets[] = {
	{"auto", NULL, NULL, {NULL}, false}, /* its name is one of `names` */
	{"zstd", "flat", "a.bin.zst", {NULL}, false},
	{"npy", "npy", "a.npy", {NULL}, false},
	{"llmc", "llmc", "a.bin", {NULL}, false},
	{"megatron", "megatron", "a.bin", {"a.idx"}, false},
	{"arrow", "arrow", "a.arrow", {NULL}, false},
	{"datatrove", "datatrove", "a.ds", {"a.ds.metadata", "a.ds.index"}, false},
	{"mds", "mds", "shard.00000.mds", {"index.json"}, false},
	{"annotations", "flat", "a.bin", {"a.csv.gz", MASKS "/a.bin"}, true},
};

static const char *const names[] = {
	"a.bin", "a.npy", "a.ds", "a.arrow", "shard.00000.mds", "a.idx", "a.zst", "index.json"};

static const struct target *target;
static struct frames *frames;
static bool changes; /* two reads of the same tokens may differ */
static char masks[80];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *name = getenv("FORMAT");

	(void)argc, (void)argv;
	for (size_t i = 0; name && i < sizeof(targets) / sizeof(targets[0]); i++)
		if (strcmp(targets[i].name, name) == 0)
			target = &targets[i];
	scratch_open();
	snprintf(masks, sizeof(masks), "%s/" MASKS, scratch);
	if (!target || mkdir(masks, 0700) != 0) {
		fprintf(stderr, "fuzz-shard: FORMAT must name a target\n");
		exit(2);
	}
	return 0;
}

/* So that what is changed is the text, and no checksum ends it. */
static void put_packed(const char *name, const uint8_t *data, size_t n)
{
	static uint8_t packed[1 << 18];
	z_stream z = {.next_in = (void *)data,
		.avail_in = (unsigned)n,
		.next_out = packed,
		.avail_out = sizeof(packed)};

	if (deflateInit2(&z, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK ||
		deflate(&z, Z_FINISH) != Z_STREAM_END)
		abort();
	deflateEnd(&z);
	scratch_put(name, packed, z.total_out);
}

static void put_side(const char *name, const uint8_t *data, size_t n)
{
	if (bytes_ending(name, ".gz") && !(n > 1 && data[0] == 0x1f && data[1] == 0x8b))
		put_packed(name, data, n);
	else
		scratch_put(name, data, n);
}

static const char *put_files(const uint8_t *data, size_t size, const char *name)
{
	for (int i = 0; i < 2 && target->side[i]; i++) {
		size_t n = size < 2 ? ABSENT : bytes_u16(data), here = size < 2 ? size : size - 2;

		data += size - here;
		if (n == ABSENT) {
			unlink(scratch_put(target->side[i], "", 0));
			n = 0;
		} else {
			n = n < here ? n : here;
			put_side(target->side[i], data, n);
		}
		data += n;
		size = here - n;
	}
	return scratch_put(name, data, size);
}

/* A failure is one of the file, or was injected. */
static void check_failure(const struct fault *fault)
{
	check_fault(fault);
	assert(fail_happened() || fault->code != FAULT_MEMORY || strstr(fault->text, "memory"));
}

/*
 * Boundaries ascend, are inside the shard, and do not depend on how many are requested at a time.
 */
static void read_documents(const struct shard *shard)
{
	static uint32_t all[TOKENS_MOST], one[1];
	uint64_t tokens = shard->facts.tokens;
	uint32_t n = shard_documents(shard, 0, tokens, all, TOKENS_MOST);
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		assert(all[i] > at && all[i] < tokens);
		if (i < 64) {
			assert(shard_documents(shard, at, tokens - at, one, 1) == 1);
			assert(at + one[0] == all[i] && shard_boundary(shard, at) == all[i]);
		}
		at = all[i];
	}
}

/* Masks are zeros and ones, and do not depend on how many are requested at a time. */
static void read_loss_mask(const struct shard *shard)
{
	static uint8_t all[TOKENS_MOST], some[TOKENS_MOST];
	uint64_t tokens = shard->facts.tokens, n = tokens < TOKENS_MOST ? tokens : TOKENS_MOST;
	struct fault fault = {.code = FAULT_NONE};
	bool fine = shard_loss_mask(shard, 0, n, all, &fault);

	if (!fine)
		check_failure(&fault);
	for (uint64_t i = 0; fine && i < n; i++)
		assert(all[i] <= 1);
	for (uint64_t at = 0; at < n && at < 50; at += 3) {
		uint64_t count = n - at < 70 ? n - at : 70;
		bool here = shard_loss_mask(shard, at, count, some, &fault);

		assert(here || !fine || fail_happened());
		assert(!fine || !here || changes || memcmp(some, all + at, count) == 0);
	}
}

static void read_tokens(const struct shard *shard, const uint8_t *data, size_t size)
{
	static char all[TOKENS_MOST * 4], some[TOKENS_MOST * 4];
	uint64_t tokens = shard->facts.tokens, width = shard->facts.token_bytes;
	uint64_t n = tokens < TOKENS_MOST ? tokens : TOKENS_MOST, most = n < 100 ? n : 100;
	struct fault fault = {.code = FAULT_NONE};
	bool fine = shard_read(shard, 0, n, all, &fault);

	if (!fine)
		check_failure(&fault);
	for (size_t i = 0; i + 4 <= size && i < 64 && n > 0; i += 4) {
		uint64_t at = bytes_u16(data + i) % n, count = bytes_u16(data + i + 2) % (most + 1);

		count = count < n - at ? count : n - at;
		bool here = shard_read(shard, at, count, some, &fault);

		assert(here || !fine || fail_happened());
		assert(!fine || !here || changes ||
			memcmp(some, all + at * width, count * width) == 0);
		if (shard_try(shard, at, count, some, NULL) && fine)
			assert(changes || memcmp(some, all + at * width, count * width) == 0);
	}
	assert(!shard_read(shard, tokens, 1, some, &fault));
	assert(tokens == 0 || !shard_read(shard, tokens - 1, 2, some, &fault));
}

static void use(const struct shard *shard, const uint8_t *data, size_t size)
{
	struct fault fault;
	struct sample *sample = sample_read(shard, &fault);

	assert(!sample || (sample->kind == SAMPLE_FINE) == (sample->text[0] == 0));
	free(sample);
	read_documents(shard);
	read_tokens(shard, data, size);
	if (target->annotations)
		read_loss_mask(shard);
}

static void set_hint(struct shard_hint *hint, uint8_t one, uint8_t two)
{
	static const uint64_t budgets[] = {BUDGET, 1, 4096, 65536};

	*hint = (struct shard_hint){.type = one & 1 ? SHARD_U32 : SHARD_U16,
		.has_type = one & 2,
		.window_tokens = one >> 2 & 7,
		.column = one & 128 ? "tokens" : NULL,
		.budget_bytes = budgets[two & 3],
		.token_bytes = two & 4 ? 4 : 0,
		.documents = target->annotations || (one & 32),
		.loss_mask = target->annotations};
	if (target->annotations && (one & 32)) {
		hint->label_mask = masks;
		hint->root_bytes = strlen(scratch) + 1;
	}
	frames = one & 64 ? frames_new(hint->budget_bytes) : NULL;
	hint->frames = frames && (two & 32) ? frames_share(frames) : frames;
	hint->indexes = two & 8 ? mds_indexes_new() : NULL;
}

static void describe_and_open(const char *path, int fd, const struct shard_hint *hint,
	const uint8_t *data, size_t size, uint8_t two)
{
	bool named = target->format && !(two & 16);
	const struct shard_format *format = named ? shard_format(target->format) : NULL;
	struct fault fault = {0};
	struct shard *described = shard_open(format, path, fd, hint, false, &fault);

	if (!described) {
		check_failure(&fault);
		return;
	}
	struct shard_facts facts = described->facts;

	format = described->format;
	shard_close(described);
	assert(facts.token_bytes == 2 || facts.token_bytes == 4);
	assert(!facts.plain || facts.data_at + facts.tokens * facts.token_bytes <= size);
	struct shard *shard = shard_open(format, path, fd, hint, true, &fault);

	if (!shard) {
		check_failure(&fault);
		return;
	}
	assert(changes || shard->facts.tokens == facts.tokens);
	use(shard, data, size);
	shard_close(shard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)};
	uint8_t one = input_byte(&in), two = input_byte(&in), change[CHANGE_BYTES];
	const char *name = target->shard ? target->shard : names[two >> 5];
	struct shard_hint hint;
	int fd;

	for (int i = 0; i < CHANGE_BYTES; i++)
		change[i] = input_byte(&in);
	changes = change[0] > 0;
	const char *path = put_files(in.at, in.n, name);

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		abort();
	fail_plan(plan);
	fail_change(change);
	set_hint(&hint, one, two);
	describe_and_open(path, fd, &hint, in.at, in.n, two);
	fail_end();
	mds_indexes_free(hint.indexes);
	if (frames)
		frames_bytes(frames);
	if (hint.frames != frames)
		frames_free(hint.frames);
	frames_free(frames);
	close(fd);
	if (!target->shard)
		unlink(path);
	return 0;
}
