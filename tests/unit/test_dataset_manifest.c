/*
 * Datasets with manifests: how a manifest is read, and how a shard is compared with it when it is
 * opened.
 */
#include "daemon/catalog/manifest.h"
#include "tests/unit/allocations.h"
#include "tests/unit/datasets.h"

#include <jansson.h>

#define DIGEST	 ",\"digest\":\"0123456789abcdef\""
#define FLAT	 ",\"format\":\"flat\",\"dtype\":\"u16\""
#define LISTED	 "      - {name: d, path: d, manifest: m.jsonl}"
#define A_LINE	 "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
#define TWO_LINE "{\"path\":\"deep/b.bin\"" FLAT ",\"tokens\":9,\"size\":18" DIGEST "}\n"

static void write_manifest(const struct place *p, const char *text)
{
	write_file(p, "m.jsonl", text, strlen(text));
}

/* Its shards do not exist, which nobody notices before one is read. */
static void test_manifest(void **state)
{
	struct place *p = *state;
	char note[512];

	write_manifest(p, A_LINE TWO_LINE);
	struct dataset listed = *open_good(p, LEN8, LISTED)->dataset;
	uint64_t first[] = {listed.table.first_window[0], listed.table.first_window[1]};

	assert_root(p, &listed, "d");
	ASSERT_SHARDS(&listed, "a.bin", "deep/b.bin");
	assert_string_equal(listed.format->name, "flat");
	assert_true(dataset_note(&listed, 2, note, sizeof(note)));
	assert_non_null(strstr(note, "m.jsonl"));
	make(p, "d/a.bin", 40);
	make(p, "d/deep/b.bin", 18);
	const struct dataset *seen = open_good(p, LEN8, "      - {name: d, path: d/}")->dataset;

	assert_true(seen->digest == listed.digest);
	assert_int_equal(seen->table.windows, listed.table.windows);
	assert_int_equal(seen->table.total_tokens, listed.table.total_tokens);
	assert_memory_equal(seen->table.first_window, first, sizeof(first));
	assert_int_equal(seen->token_bytes, listed.token_bytes);
	assert_false(dataset_note(seen, 2, note, sizeof(note)));
}

/* Widths, samples and frames come from the manifest alone. */
static void test_manifest_facts(void **state)
{
	static const char rows[] = "{\"path\":\"a.npy\",\"format\":\"npy\",\"dtype\":\"i32\","
				   "\"tokens\":90,\"size\":488" DIGEST ",\"row_tokens\":9}\n";
	static const char packed[] =
		"{\"path\":\"a.bin.zst\"" FLAT ",\"tokens\":900000,\"size\":7" DIGEST
		",\"frame_bytes\":1800000}\n";
	struct place *p = *state;
	char note[512];

	write_manifest(p, rows);
	const struct dataset *d = open_good(p, LEN8, LISTED)->dataset;

	assert_int_equal(d->token_bytes, 4);
	assert_true(d->is_signed);
	assert_int_equal(d->sample_tokens, 9);
	assert_int_equal(d->table.stride, 9);
	assert_int_equal(d->table.windows, 10);
	d = open_good(p, "seq_len: 10", LISTED)->dataset;
	assert_int_equal(d->sample_tokens, 0);
	assert_int_equal(d->table.windows, 8);
	write_manifest(p, packed);
	d = open_good(p, LEN8, LISTED)->dataset;
	assert_int_equal(d->frame_bytes, 1800000);
	assert_true(dataset_note(d, 1, note, sizeof(note)));
}

struct manifest_fault {
	const char *text, *expected;
};

#define TOKENS(n) "{\"path\":\"a.bin\"" FLAT ",\"tokens\":" n ",\"size\":40" DIGEST "}\n"
#define NAME(n)	  "{\"path\":\"" n "\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
#define NAMED(n, what)                                                                             \
	{                                                                                          \
		NAME(n), "DIR/m.jsonl:1: path '" n "' " what                                       \
			 "; must be a file below the dataset's directory"                          \
	}

static const struct manifest_fault line_faults[] = {
	{A_LINE "{\"path\":\n",
		"DIR/m.jsonl:2: invalid JSON at byte 9: unexpected token near end of file"},
	{A_LINE "\n", "DIR/m.jsonl:2: invalid JSON at byte 1: unexpected token near end of file"},
	{"[]\n", "DIR/m.jsonl:1: is an array; must be a JSON object"},
	{A_LINE "{}", "DIR/m.jsonl:2: has no newline within 2 bytes; must be one object "
		      "and a newline, at most 32767 bytes"},
	{"{\"path\":\"a\",\"path\":\"b\"}\n", "DIR/m.jsonl:1: invalid JSON at byte 18: "
					      "duplicate object key near '\"path\"'"},
};

static const struct manifest_fault member_faults[] = {
	{"{\"format\":\"flat\"}\n", "DIR/m.jsonl:1: path is missing; must be a string"},
	{"{\"path\":\"a.bin\"" FLAT ",\"tokens\":1,\"size\":2}\n",
		"DIR/m.jsonl:1: digest is missing; must be a string"},
	{TOKENS("-1"), "DIR/m.jsonl:1: tokens is -1; must be 0 to 1152921504606846976"},
	{TOKENS("1e3"), "DIR/m.jsonl:1: tokens is a fraction; must be an integer"},
	{TOKENS("\"20\""), "DIR/m.jsonl:1: tokens is a string; must be an integer"},
	{TOKENS("9223372036854775807"), "DIR/m.jsonl:1: tokens is 9223372036854775807; "
					"must be 0 to 1152921504606846976"},
	{TOKENS("9223372036854775808"), "DIR/m.jsonl:1: invalid JSON at byte 74: too big "
					"integer near '9223372036854775808'"},
	{TOKENS("20,\"sha\":1"),
		"DIR/m.jsonl:1: has unknown members; must have only path, format, dtype, "
		"tokens, size, digest, sample_tokens, row_tokens, frame_bytes, etag, data_at and "
		"side"},
	{TOKENS("20,\"sample_tokens\":9"),
		"DIR/m.jsonl:1: tokens is 20; must be a multiple of sample_tokens, 9"},
	{TOKENS("20,\"row_tokens\":9"),
		"DIR/m.jsonl:1: tokens is 20; must be a multiple of row_tokens, 9"},
	{TOKENS("20,\"row_tokens\":5,\"sample_tokens\":5"),
		"DIR/m.jsonl:1: has both row_tokens and sample_tokens; must have only one "
		"of them"},
	{TOKENS("20,\"frame_bytes\":1099511627776"),
		"DIR/m.jsonl:1: frame_bytes is 1099511627776; must be at most 268435456, a "
		"quarter of `memory`"},
	{"{\"path\":\"a\",\"format\":\"parquet\",\"dtype\":\"u16\",\"tokens\":1,\"size\":"
	 "2" DIGEST "}\n",
		"DIR/m.jsonl:1: format 'parquet' is unknown; must be one of: megatron, "
		"npy, llmc, arrow, datatrove, mds, flat"},
	{"{\"path\":\"a\",\"format\":\"npy\",\"dtype\":\"f4\",\"tokens\":1,\"size\":"
	 "2" DIGEST "}\n",
		"DIR/m.jsonl:1: dtype 'f4' is unknown; must be u8, i8, u16, i16, u32, i32, "
		"u64 or i64"},
	{"{\"path\":\"a\"" FLAT ",\"tokens\":1,\"size\":2,\"digest\":\"0123456789ABCDEF\"}\n",
		"DIR/m.jsonl:1: digest is '0123456789ABCDEF'; must be 16 hexadecimal "
		"digits"},
};

#define ETAG_WRONG(etag, shown, what)                                                              \
	{                                                                                          \
		TOKENS("20,\"etag\":\"" etag "\""),                                                \
			"DIR/m.jsonl:1: etag is '" shown "', which " what                          \
	}
#define ETAG_RULE "; must be 1 to 127 printable characters, without quotes"
#define SIDE_WRONG(side, what)                                                                     \
	{                                                                                          \
		TOKENS("20,\"side\":" side), "DIR/m.jsonl:1: " what                                \
	}
#define SIDE_RULE "; must be [SIZE, \"ETAG\"], the bytes and the ETag of the side file"

/* Members for stores. They are checked, and otherwise ignored, on a local path too. */
static const struct manifest_fault store_faults[] = {
	{TOKENS("20,\"etag\":7"), "DIR/m.jsonl:1: etag is an integer; must be a string"},
	ETAG_WRONG("W/\\\"abc\\\"", "W/\"abc\"",
		"is weak: other bytes may have the same; must be a strong ETag, without W/"),
	ETAG_WRONG("\\\"abc\\\"", "\"abc\"", "has a quote" ETAG_RULE),
	ETAG_WRONG("ab\\nc", "ab?c", "has a character that is not printable, or a space" ETAG_RULE),
	ETAG_WRONG("ab c", "ab c", "has a character that is not printable, or a space" ETAG_RULE),
	ETAG_WRONG("", "", "is empty" ETAG_RULE),
	{TOKENS("20,\"data_at\":1"),
		"DIR/m.jsonl:1: data_at is 1; must be at most 0: after it, 20 tokens of 2 bytes "
		"must fit into size, 40"},
	{TOKENS("20,\"data_at\":41"),
		"DIR/m.jsonl:1: data_at is 41; must be at most 0: after it, 20 tokens of 2 bytes "
		"must fit into size, 40"},
	{TOKENS("21,\"data_at\":0"),
		"DIR/m.jsonl:1: tokens is 21 of 2 bytes, and data_at is set; must be at most 20, "
		"so that they fit into size, 40"},
	{TOKENS("20,\"data_at\":0,\"frame_bytes\":80"),
		"DIR/m.jsonl:1: data_at is 0, but the shard is compressed (frame_bytes 80); must "
		"be absent"},
	SIDE_WRONG("[]", "side is an array; must be an object with [SIZE, \"ETAG\"] for each side "
			 "file"),
	SIDE_WRONG("{\"a.idx\":7}", "side 'a.idx' is an integer" SIDE_RULE),
	SIDE_WRONG("{\"a.idx\":[7,8,9]}", "side 'a.idx' is another array" SIDE_RULE),
	SIDE_WRONG("{\"a.idx\":[-1,\"e\"]}", "side 'a.idx' is another array" SIDE_RULE),
	SIDE_WRONG("{\"a.idx\":[7,\"e\",1]}", "side 'a.idx' is another array" SIDE_RULE),
	SIDE_WRONG("{\"../a.idx\":[7,\"e\"]}",
		"side '../a.idx' has a part that is empty, . or ..; must be a file below the "
		"dataset's directory, or a URL"),
	SIDE_WRONG("{\"a.idx\":[7,\"W/e\"]}",
		"the ETag of side 'a.idx' is 'W/e', which is weak: other bytes may have the same; "
		"must be a strong ETag, without W/"),
};

/* A manifest for a store serves local shards, too. */
static void test_manifest_with_etags(void **state)
{
	struct place *p = *state;

	write_manifest(p, "{\"path\":\"a.bin\"" FLAT
			  ",\"tokens\":20,\"size\":40,\"etag\":\"0f-16\",\"data_at\":0,"
			  "\"side\":{\"a.csv.gz\":[7,\"e\"],\"s3://masks/a.bin\":[20,\"f\"]}}\n");
	const struct dataset *d = open_good(p, LEN8, LISTED)->dataset;

	assert_int_equal(d->table.tokens[0], 20);
	assert_null(d->objects);
	assert_false(dataset_is_plain(d, 0));
}

static const struct manifest_fault path_faults[] = {
	NAMED("../a.bin", "has a part that is empty, . or .."),
	NAMED("x/../../a.bin", "has a part that is empty, . or .."),
	NAMED("./a.bin", "has a part that is empty, . or .."),
	NAMED("x//a.bin", "has a part that is empty, . or .."),
	NAMED("x/", "has a part that is empty, . or .."),
	NAMED("", "has a part that is empty, . or .."),
	NAMED("/etc/passwd", "is absolute"),
	{NAME("a\\u0000b"), "DIR/m.jsonl:1: invalid JSON at byte 18: \\u0000 is not "
			    "allowed without JSON_ALLOW_NUL near '\"a\\u0000b\"'"},
	{A_LINE A_LINE, "DIR/m.jsonl:2: path 'a.bin' occurs twice; must be unique"},
	{TWO_LINE A_LINE, "DIR/m.jsonl:2: path 'a.bin' comes after 'deep/b.bin'; lines "
			  "must be sorted by path, byte by byte (LC_ALL=C sort)"},
};

static const struct manifest_fault shard_faults[] = {
	{A_LINE "{\"path\":\"b\",\"format\":\"npy\",\"dtype\":\"u16\",\"tokens\":1,"
		"\"size\":2" DIGEST "}\n",
		"DIR/m.jsonl:2: format is npy, but the first shard, a.bin, is flat; all "
		"shards of a dataset must have one format"},
	{A_LINE "{\"path\":\"b\",\"format\":\"flat\",\"dtype\":\"u32\",\"tokens\":1,"
		"\"size\":4" DIGEST "}\n",
		"DIR/m.jsonl:2: dtype u32 is served in 4 bytes, but that of the first "
		"shard, a.bin, in 2; all shards of a dataset must have one width"},
	{A_LINE "{\"path\":\"b\"" FLAT ",\"tokens\":9,\"size\":18" DIGEST ",\"sample_tokens\":9}\n",
		"DIR/m.jsonl:2: sample_tokens is 9 (0: none), but that of the first shard, "
		"a.bin, is 0; all shards of a dataset must have the same"},
	{"", "DIR/t.yaml:6: streams.train.datasets[0].manifest: DIR/m.jsonl: is empty; "
	     "must list at least one shard; must be a file written by `tokctl inspect "
	     "--manifest`"},
};

static void assert_faults(struct place *p, const struct manifest_fault *faults, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		write_manifest(p, faults[i].text);
		assert_refused_whole(p, LEN8, LISTED, faults[i].expected);
		assert_int_equal(p->fault.code,
			strstr(faults[i].expected, "t.yaml") ? FAULT_ARGUMENT : FAULT_DATA);
	}
}

#define ASSERT_FAULTS(p, faults) assert_faults(p, faults, sizeof(faults) / sizeof((faults)[0]))

static void test_manifest_lines(void **state)
{
	struct place *p = *state;
	char text[1 << 16];

	ASSERT_FAULTS(p, line_faults);
	memset(text, 'x', sizeof(text));
	write_file(p, "m.jsonl", text, sizeof(text));
	assert_refused_whole(p, LEN8, LISTED,
		"DIR/m.jsonl:1: has no newline within 32767 bytes; must be one object and a "
		"newline, at most 32767 bytes");
	write_file(p, "m.jsonl", A_LINE "\0\n", sizeof(A_LINE "\0"));
	assert_refused_whole(p, LEN8, LISTED,
		"DIR/m.jsonl:2: has no newline within 0 bytes; must be one object and a newline, "
		"at most 32767 bytes");
	assert_int_equal(p->fault.index, 2); /* the line */
}

static void test_manifest_members(void **state)
{
	struct place *p = *state;
	char text[1 << 12];

	ASSERT_FAULTS(p, member_faults);
	ASSERT_FAULTS(p, store_faults);
	ASSERT_FAULTS(p, path_faults);
	ASSERT_FAULTS(p, shard_faults);
	text[0] = 0;
	for (int i = 0; i < 17; i++) /* 2^60 each */
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			"{\"path\":\"%02d.bin\"" FLAT
			",\"tokens\":1152921504606846976,\"size\":40" DIGEST "}\n",
			i);
	write_manifest(p, text);
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].path: more than 2^64 tokens in total; must be fewer");
}

static void test_manifest_files(void **state)
{
	struct place *p = *state;

	unlink(in(p, "m.jsonl"));
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].manifest: DIR/m.jsonl: No such file or directory; "
		"must be a file written by `tokctl inspect --manifest`");
	assert_int_equal(mkfifo(in(p, "m.jsonl"), 0644), 0);
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].manifest: DIR/m.jsonl: is not a regular file; must "
		"be a file written by `tokctl inspect --manifest`");
}

/* The config and the manifest must fit. */
static void test_manifest_and_config(void **state)
{
	struct place *p = *state;

	write_manifest(p, A_LINE);
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: 'd/*.bin'}",
		"6: streams.train.datasets[0].path: d/*.bin: is not a directory; with a manifest, "
		"must be the directory that the paths in DIR/m.jsonl are relative to");
	make(p, "d/a.bin", 40);
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d/a.bin}",
		"6: streams.train.datasets[0].path: d/a.bin: is not a directory; with a manifest, "
		"must be the directory that the paths in DIR/m.jsonl are relative to");
	assert_refused_whole(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d, format: npy}",
		"DIR/m.jsonl:1: format is flat, but the config sets npy; must be the same");
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d, format: nix}",
		"6: streams.train.datasets[0].format: 'nix' is unknown; must be auto or one of: "
		"megatron, npy, llmc, arrow, datatrove, mds, flat");
	assert_refused(p, "seq_len: 40", LISTED,
		"6: streams.train.datasets[0].path: no shard is as long as a window: the largest, "
		"a.bin, has 20 tokens, and a window has 41 (seq_len 40 + extra 1); use longer "
		"shards, a smaller seq_len or weight 0");
}

/* Memory runs out at each allocation of the JSON library: that is not a fault of the manifest. */
static void test_manifest_memory(void **state)
{
	struct place *p = *state;
	struct manifest m;
	unsigned failed = 0;

	write_manifest(p, A_LINE TWO_LINE);
	json_set_alloc_funcs(allocate, free);
	for (unsigned call = 0;; call++) {
		struct fault fault = {0};

		allocations = call;
		if (manifest_read(
			    &m, in(p, "m.jsonl"), ".", NULL, NULL, &(struct shard_hint){0}, &fault))
			break;
		if (fault.code != FAULT_MEMORY)
			fail_msg("allocation %u: %s", call, fault.text);
		assert_non_null(strstr(fault.text, "m.jsonl:"));
		failed++;
	}
	json_set_alloc_funcs(malloc, free);
	manifest_free(&m);
	assert_true(failed > 10);
}

static const char *manifest_note(const struct dataset *d)
{
	static char text[LIMIT_TEXT_BYTES];

	assert_true(dataset_note(d, 2, text, sizeof(text)));
	return text;
}

/*
 * The directory of its paths may have any characters in its name. A remark says that it does not
 * exist.
 */
static void test_manifest_directory(void **state)
{
	struct place *p = *state;

	write_manifest(p, A_LINE);
	assert_non_null(strstr(manifest_note(open_good(p, LEN8, LISTED)->dataset),
		"/d, cannot be read now: No such file or directory"));
	make(p, "d/a.bin", 40);
	assert_string_equal(manifest_note(open_good(p, LEN8, LISTED)->dataset),
		"its shards are taken from m.jsonl; each is compared with it when it is first "
		"read");
	make(p, "[d]*/a.bin", 40);
	open_good(p, LEN8, "      - {name: d, manifest: m.jsonl, path: '[d]*'}");
}

/* Opens the first shard. Returns "" or the message. */
static const char *open_first(const struct place *p, const struct dataset *d)
{
	static struct fault fault;
	char path[4096];

	(void)p;
	dataset_shard_path(d, 0, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	struct shard *shard = dataset_open_shard(d, 0, path, fd, NULL, &fault);

	if (shard)
		fault.text[0] = 0;
	shard_close(shard);
	close(fd);
	return fault.text;
}

/* A shard that gains or loses its index of documents after it was first described is rejected. */
static void test_index_that_comes_and_goes(void **state)
{
	static const char *const sources[] = {LISTED, "      - {name: d, path: d}"};
	struct place *p = *state;

	write_manifest(p, A_LINE);
	make(p, "d/a.bin", 40);
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		const struct dataset *d =
			open_good(p, LEN8 "\n    documents: true\n    eos: 1", sources[i])->dataset;

		assert_string_equal(open_first(p, d), "");
		make(p, "d/a.csv.gz", 10);
		assert_string_equal(open_first(p, d),
			"had no index of documents when it was listed and has one now");
		unlink(in(p, "d/a.csv.gz"));
		assert_string_equal(open_first(p, d), "");
	}
}

/* Overwrites a file with other bytes of the same length. */
static void change(const struct place *p, const char *name)
{
	const struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
	int fd = open(in(p, name), O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

/* A side file must be the one that was listed or, with a manifest, first opened. */
static void test_side_files(void **state)
{
#define PLAIN "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
	/* One sequence of 20 tokens, one document. */
	static const uint8_t idx[34 + 12 + 16] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0,
		0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 20, [54] = 1};
	static const uint8_t ends[8] = {20}, mask[20] = {1};
	static const uint8_t list[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3, 0x33, 0xd0, 0x31, 0x32,
		0xe0, 2, 0, 0x0e, 0xb1, 0x9b, 0x95, 5, 0, 0, 0}; /* 0,20 */
	static const struct {
		const char *shard, *side;
		const void *bytes;
		size_t n;
		const char *keys, *manifest, *what;
	} cases[] = {
		{"d/a.bin", "d/a.idx", idx, sizeof(idx), "",
			"{\"path\":\"a.bin\",\"format\":\"megatron\",\"dtype\":\"u16\",\"tokens\":"
			"20,\"size\":40" DIGEST "}\n",
			"index"},
		{"d/a.ds", "d/a.ds.index", ends, sizeof(ends), "",
			"{\"path\":\"a.ds\",\"format\":\"datatrove\",\"dtype\":\"u16\",\"tokens\":"
			"20,\"size\":40" DIGEST "}\n",
			"index"},
		{"d/a.ds", "d/a.ds.loss", mask, sizeof(mask), "",
			"{\"path\":\"a.ds\",\"format\":\"datatrove\",\"dtype\":\"u16\",\"tokens\":"
			"20,\"size\":40" DIGEST "}\n",
			"loss mask"},
		{"d/a.bin", "d/a.csv.gz", list, sizeof(list), "", PLAIN, "list of document bounds"},
		{"d/a.bin", "masks/a.bin", mask, sizeof(mask), ", label_mask: masks", PLAIN,
			"loss mask"},
	};
	struct place *p = *state;

	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
		const __typeof__(*cases) *c = &cases[i / 2];
		char dataset[200], expected[200];

		make(p, c->shard, 40);
		write_file(p, c->side, c->bytes, c->n);
		write_manifest(p, c->manifest);
		snprintf(dataset, sizeof(dataset), "      - {name: d, path: d%s%s}", c->keys,
			i % 2 ? ", manifest: m.jsonl" : "");
		snprintf(expected, sizeof(expected),
			"its %s changed after the shard was listed (inode, size or mtime differ)",
			c->what);
		const struct dataset *d = open_good(
			p, LEN8 "\n    documents: true\n    loss_mask: true\n    eos: 1", dataset)
						  ->dataset;

		assert_string_equal(open_first(p, d), "");
		change(p, c->side);
		assert_string_equal(open_first(p, d), expected);
		/* Listing it again accepts the change. */
		d = open_good(
			p, LEN8 "\n    documents: true\n    loss_mask: true\n    eos: 1", dataset)
			    ->dataset;
		assert_string_equal(open_first(p, d), "");
		close_catalog(p);
		unlink(in(p, c->shard));
		unlink(in(p, c->side));
	}
}

/*
 * A shard is compared with the manifest when it is first opened, and later with the file that was
 * opened.
 */
static void test_manifest_compared(void **state)
{
	static const uint8_t llmc[2048] = {0x28, 0xdf, 0x34, 0x01, 1, 0, 0, 0, 0x00, 0x02};
	struct place *p = *state;
	struct fault fault;
	uint32_t magic = 20240520;
	uint8_t other[sizeof(llmc)];

	write_manifest(p, A_LINE);
	const struct dataset *d = open_good(p, LEN8, LISTED)->dataset;

	make(p, "d/a.bin", 38);
	struct stat st = stat_of(p, "d/a.bin");

	assert_true(dataset_same_shard(d, 0, &st, &fault)); /* not compared yet */
	assert_string_equal(open_first(p, d), "size is 40 in the manifest and 38 in the file");
	make(p, "d/a.bin", 40);
	assert_string_equal(open_first(p, d), "");
	st = stat_of(p, "d/a.bin");
	assert_true(dataset_same_shard(d, 0, &st, &fault));
	st.st_ino++;
	assert_false(dataset_same_shard(d, 0, &st, &fault));
	assert_non_null(strstr(fault.text, "inode was "));

	d = open_good(p, LEN8, "      - {name: d, path: d, manifest: m.jsonl, dtype: u32}")
		    ->dataset;
	assert_string_equal(open_first(p, d),
		"dtype is u16 in the manifest and u32 in the file, as dtype in the config sets it");

	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":19,\"size\":40" DIGEST "}\n");
	assert_string_equal(open_first(p, open_good(p, LEN8, LISTED)->dataset),
		"tokens is 19 in the manifest and 20 in the file");
	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST
			  ",\"sample_tokens\":10}\n");
	assert_string_equal(open_first(p, open_good(p, "seq_len: 9", LISTED)->dataset),
		"sample_tokens is 10 in the manifest and 0 in the file");

	/* The same size, which a flat file does not reveal. */
	memcpy(other, llmc, sizeof(other));
	memcpy(other, &magic, sizeof(magic));
	write_file(p, "d/a.bin", other, sizeof(other));
	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":1024,\"size\":2048" DIGEST "}\n");
	assert_string_equal(open_first(p, open_good(p, LEN8, LISTED)->dataset),
		"format is flat in the manifest and llmc in the file");
	const struct dataset *flat =
		open_good(p, LEN8, "      - {name: d, path: d, manifest: m.jsonl, format: flat}")
			->dataset;

	assert_string_equal(
		open_first(p, flat), "is an llm.c file, not a shard of tokens; set `format: llmc`");
}

/*
 * A shard takes 64 bytes in addition to its name. (Sanitizers' allocators count nothing; the plain
 * build does.)
 */
static void test_memory(void **state)
{
	enum { SHARDS = 3000 };
	struct place *p = *state;
	size_t names = 0;

	for (int i = 0; i < SHARDS; i++) {
		char name[32];

		names += (size_t)snprintf(name, sizeof(name), "d/%05d.bin", i) - 1;
		make(p, name, 18);
	}
	size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
	const struct dataset *d = open_good(p, LEN8, "      - {name: d, path: d}")->dataset;
	size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;

	assert_int_equal(d->table.windows, SHARDS);
	assert_true(after - before <= 64 * SHARDS + names + 8192);

	/* With a manifest too: it is freed after opening. */
	close_catalog(p);
	FILE *file = fopen(in(p, "m.jsonl"), "w");

	assert_non_null(file);
	for (int i = 0; i < SHARDS; i++)
		fprintf(file,
			"{\"path\":\"%05d.bin\"" FLAT ",\"tokens\":9,\"size\":18" DIGEST "}\n", i);
	assert_int_equal(fclose(file), 0);
	before = mallinfo2().uordblks + mallinfo2().hblkhd;
	d = open_good(p, LEN8, LISTED)->dataset;
	after = mallinfo2().uordblks + mallinfo2().hblkhd;
	assert_int_equal(d->table.windows, SHARDS);
	assert_true(after - before <= 64 * SHARDS + names + 8192);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_manifest, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_with_etags, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_facts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_lines, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_members, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_and_config, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_memory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_directory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_index_that_comes_and_goes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_side_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_compared, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_memory, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
