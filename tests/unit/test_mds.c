/*
 * MDS: how good shards are read, and the message for each of many broken ones. tests/python reads
 * shards of Mosaic's own writer.
 */
#include "tests/unit/mds.h"

static void test_good(void **state)
{
	static const struct {
		const char *config, *sample;
		size_t bytes;
		uint64_t tokens;
		struct shard_hint hint;
	} good[] = {
		{usual_config, usual_sample, USUAL, 4, {0}},
		{usual_config, usual_sample, USUAL, 4, {.window_tokens = 4}},
		{usual_config, SAMPLE("\25\0\0\0\6\4\0\0\0" FOUR), 4, {0}},
		{usual_config, SAMPLE("\31\0\0\0\7\4\0\0\0\0\0\0\0" FOUR), 4, {0}},
		{usual_config, SAMPLE("\23\0\0\0\10\2\2" FOUR), 4, {0}},
		{usual_config, SAMPLE("\23\0\0\0\5\4\0" FOUR), 4, {0}},
		{CONFIG("\"x\"", "\"ndarray\"", "0"), SAMPLE("\23\0\0\0\41\4\4" FOUR), 4, {0}},
		{CONFIG("\"x\"", "\"ndarray\"", "null"),
			SAMPLE("\23\0\0\0\101\4\2\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"), 2, {0}},
		{CONFIG("\"x\"", "\"ndarray:uint16:2,4\"", "16"), SAMPLE(FOUR), 8, {0}},
		{CONFIG("\"x\"", "\"bytes\"", "null"), SAMPLE("\20\0\0\0" FOUR), 8,
			{.has_type = true, .type = SHARD_U16}},
		{CONFIG("\"x\"", "\"uint32\"", "4"), SAMPLE("\1\0\0\0"), 1, {0}},
		{CONFIG("\"x\"", "\"int\"", "8"), SAMPLE("\1\0\0\0\0\0\0\0"), 1, {0}},
		{CONFIG("\"a\", \"b\", \"c\"", "\"str\", \"ndarray:int32\", \"pkl\"",
			 "null, null, 2"),
			SAMPLE("\3\0\0\0\22\0\0\0xyz\4\4" FOUR "pp"), 4, {.column = "b"}},
		{CONFIG("\"a\", \"b\"", "\"ndarray:int8:3\", \"ndarray:int32:4\"", "3, 16"),
			SAMPLE("abc" FOUR), 4, {.column = "b"}},
	};
	struct piece p;

	for (size_t i = 0; i < COUNT(good); i++) {
		struct shard_facts facts;

		put_shard(&p, good[i].config, good[i].sample, good[i].bytes, good[i].sample,
			good[i].bytes);
		assert_line(whole(files_put(*state, "x.mds", p.at, p.n), &good[i].hint, &facts), "",
			"good", i);
		assert_int_equal(facts.tokens, 3 * good[i].tokens);
		assert_int_equal(facts.sample_tokens, good[i].tokens);
		assert_int_equal(facts.documents, SHARD_UNKNOWN);
		assert_false(facts.plain);
	}
}

/* A read may begin at any token. */
static void test_tokens(void **state)
{
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	struct piece p;
	struct fault fault;
	uint32_t tokens[12];

	put_usual(&p);
	const char *path = files_put(*state, "x.mds", p.at, p.n);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	assert_non_null(format);
	struct shard *shard = shard_open(format, path, fd, &hint, &facts, &fault);

	assert_non_null(shard);
	for (uint64_t from = 0; from < 12; from++)
		for (uint64_t n = 0; from + n <= 12; n++) {
			assert_true(shard_read(shard, from, n, tokens, &fault));
			for (uint64_t i = 0; i < n; i++)
				assert_int_equal(tokens[i], (from + i) % 4 + 1);
			memset(tokens, 0, sizeof(tokens));
			assert_true(!files_try(fd) ||
				    shard_try(shard, shard_find(shard, from), n, tokens));
			for (uint64_t i = 0; files_try(fd) && i < n; i++)
				assert_int_equal(tokens[i], (from + i) % 4 + 1);
		}
	shard_close(shard);
	close(fd);
}

/* ---- broken shards ---- */

#define TOKENS(encoding, size) CONFIG("\"tokens\"", "\"" encoding "\"", size)
#define ARRAYS(sizes)	       CONFIG("\"tokens\"", "\"ndarray:int32\"", sizes)

/*
 * A shard of three samples: the first and the last are the usual ones. With another config all
 * three are the same.
 */
struct broken {
	const char *config; /* NULL: usual */
	const char *sample; /* NULL: usual; the second sample, or all three with another config */
	size_t bytes;
	bool has_patch; /* a u32 */
	uint32_t patch_at, patch;
	size_t cut; /* bytes removed from its end */
	int added;
	const char *column;
	const char *why;
};

static void put_broken(struct piece *p, const struct broken *b)
{
	const char *config = b->config ? b->config : usual_config;
	const char *sample = b->sample ? b->sample : usual_sample;
	size_t bytes = b->sample ? b->bytes : (size_t)USUAL;

	if (b->config)
		put_shard(p, config, sample, bytes, sample, bytes);
	else
		put_shard(p, config, usual_sample, USUAL, sample, bytes);
	for (unsigned i = 0; i < 4 && b->has_patch; i++)
		p->at[b->patch_at + i] = (uint8_t)(b->patch >> 8 * i);
	for (int i = b->added; i > 0; i--)
		piece_number(p, 0, 1);
	p->n -= b->cut < p->n ? b->cut : p->n;
}

#define PATCH(at, value) .has_patch = true, .patch_at = at, .patch = value

static const struct broken broken[] = {
	/* counts and offsets: n at 0, offsets at 4, 8, 12, 16 */
	{.cut = 1000, .why = "its size is 0 bytes; a shard of one sample has at least 12"},
	{PATCH(0, 0), .why = "number of samples is 0: it has no tokens; remove it"},
	{PATCH(0, 4), .why = "the last sample ends at byte 1868767867 (offset 4); the file has 267 "
			     "bytes"},
	{PATCH(0, 2), .why = "the last sample ends at byte 245 (offset 2); the file has 267 bytes"},
	{PATCH(0, 0xffffffff), .why = "number of samples is 4294967295, whose offsets end at byte "
				      "17179869188; the file has 267 bytes"},
	{PATCH(0, 1u) << 30, .why = "number of samples is 1073741824, whose offsets end at byte "
				    "4294967304; the file has 267 bytes"},
	{PATCH(4, 0), .why = "offset 0 is 0; must be 20 (the end of the offsets) to 267"},
	{PATCH(4, 0xffffffff),
		.why = "offset 0 is 4294967295; must be 20 (the end of the offsets) to 267"},
	{PATCH(4, 20), .why = "config: invalid JSON at byte 0: unexpected token near end of file"},
	{PATCH(8, 20), .why = "offset 1 is 20; must be 201 to 267"},
	{PATCH(8, 5000), .why = "offset 1 is 5000; must be 201 to 267"},
	{PATCH(12, 20),
		.why = "offset 2 is 20; must be 223 to 267: offsets ascend and end with the file"},
	{PATCH(12, 0x7fffffff), .why = "offset 2 is 2147483647; must be 223 to 267: offsets ascend "
				       "and end with the file"},
	{PATCH(16, 20),
		.why = "the last sample ends at byte 20 (offset 3); the file has 267 bytes"},
	{.cut = 1, .why = "the last sample ends at byte 267 (offset 3); the file has 266 bytes"},
	{.added = 1, .why = "the last sample ends at byte 267 (offset 3); the file has 268 bytes"},
	/* the config */
	{.config = "", .why = "config: invalid JSON at byte 0: unexpected token near end of file"},
	{.config = "{",
		.why = "config: invalid JSON at byte 1: string or '}' expected near end of file"},
	{.config = "[]", .why = "config: is an array; must be a JSON object"},
	{.config = "null", .why = "config: is null; must be a JSON object"},
	{.config = "{} x", .why = "config: invalid JSON at byte 3: extra characters after the end"},
	{.config = "{\"version\": 2, \"version\": 2}",
		.why = "config: invalid JSON at byte 24: duplicate object key near '\"version\"'"},
	{.config = "{\"version\": \"2\\u0000\"}",
		.why = "config: invalid JSON at byte 21: \\u0000 is not allowed without "
		       "JSON_ALLOW_NUL near '\"2\\u0000\"'"},
	{.config = "{\"version\": 99999999999999999999}",
		.why = "config: invalid JSON at byte 32: too big integer near "
		       "'99999999999999999999'"},
	{.config = "{\"version\": \xff\xfe}",
		.why = "config: invalid JSON at byte 12: unable to decode byte 0xff"},
	{.config = "{}", .why = "config: version is missing; must be 2"},
	{.config = "{\"version\": 1}", .why = "config: version is 1; must be 2"},
	{.config = "{\"version\": 2.0}", .why = "config: version is a fraction; must be 2"},
	{.config = "{\"version\": -1}", .why = "config: version is -1; must be 2"},
	{.config = "{\"version\": 2}", .why = "config: format is missing; must be a string"},
	{.config = "{\"version\": 2, \"format\": \"json\"}",
		.why = "config: format is 'json'; must be mds"},
	{.config = "{\"version\": 2, \"format\": [\"mds\"]}",
		.why = "config: format is an array; must be a string"},
	{.config = "{\"version\": 2, \"format\": \"mds\"}",
		.why = "config: column_names is missing; must be an array"},
	{.config = CONFIG("", "", ""),
		.why = "config: column_names has 0 entries, column_names has 0; must be the same "
		       "number, 1 to 256"},
	{.config = CONFIG("\"a\"", "\"int\", \"int\"", "8"),
		.why = "config: column_encodings has 2 entries, column_names has 1; must be the "
		       "same number, 1 to 256"},
	{.config = CONFIG("\"a\"", "\"int\"", ""),
		.why = "config: column_sizes has 0 entries, column_names has 1; must be the same "
		       "number, 1 to 256"},
	{.config = CONFIG("1", "\"int\"", "8"),
		.why = "config: column_names[0] is an integer; must be a string"},
	{.config = CONFIG("\"a\"", "null", "8"),
		.why = "config: column_encodings[0] is null; must be a string"},
	{.config = CONFIG("\"a\"", "\"int\"", "false"),
		.why = "config: column_sizes[0] is false; must be null or an integer"},
	{.config = CONFIG("\"a\"", "\"int\"", "\"8\""),
		.why = "config: column_sizes[0] is a string; must be null or an integer"},
	{.config = CONFIG("\"a\"", "\"int\"", "8.0"),
		.why = "config: column_sizes[0] is a fraction; must be null or an integer"},
	{.config = CONFIG("\"a\"", "\"int\"", "-8"),
		.why = "config: column_sizes[0] is -8; must be null or 0 to 4294967295"},
	{.config = CONFIG("\"a\"", "\"int\"", "4294967296"),
		.why = "config: column_sizes[0] is 4294967296; must be null or 0 to 4294967295"},
	{.config = CONFIG("\"a\", \"a\"", "\"int\", \"int\"", "8, 8"),
		.why = "config: column_names[1] is 'a'; must come after the previous name: names "
		       "are sorted and unique"},
	{.config = CONFIG("\"b\", \"a\"", "\"int\", \"int\"", "8, 8"),
		.why = "config: column_names[1] is 'a'; must come after the previous name: names "
		       "are sorted and unique"},
	/* which column */
	{.column = "labels",
		.why = "has no column labels; set `column` to the one with the tokens, of: tokens: "
		       "ndarray:int32"},
	{.config = TOKENS("pkl", "null"),
		.why = "column `tokens` is encoded as `pkl`, which is a pickle; must be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, bytes, or an "
		       "integer"},
	{.config = TOKENS("str", "null"),
		.why = "column `tokens` is encoded as `str`, which does not hold tokens; must be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, bytes, "
		       "or an integer"},
	{.config = TOKENS("json", "null"),
		.why = "column `tokens` is encoded as `json`, which does not hold tokens; must be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, bytes, "
		       "or an integer"},
	{.config = TOKENS("ndarray:float32", "null"),
		.why = "column `tokens` is encoded as `ndarray:float32`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:", "null"),
		.why = "column `tokens` is encoded as `ndarray:`, which does not hold tokens; must "
		       "be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, "
		       "bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:0", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:0`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:-4", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:-4`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:4,", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:4,`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:4:4", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:4:4`, which does not hold "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an "
		       "integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:99999999999999999999", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:99999999999999999999`, which "
		       "does not hold tokens; must be ndarray, ndarray:DTYPE or "
		       "ndarray:DTYPE:SHAPE with an integer type, bytes, or an integer"},
	{.config = TOKENS("ndarray:int32:65536,65536,65536,65536", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:65536,65536,65536,65536`, "
		       "which does not hold tokens; must be ndarray, ndarray:DTYPE or "
		       "ndarray:DTYPE:SHAPE with an integer type, bytes, or an integer"},
	{.config = TOKENS("ndarrays", "null"),
		.why = "column `tokens` is encoded as `ndarrays`, which does not hold tokens; must "
		       "be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, "
		       "bytes, or an integer"},
	{.config = TOKENS("uint128", "16"),
		.why = "column `tokens` is encoded as `uint128`, which does not hold tokens; must "
		       "be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, "
		       "bytes, or an integer"},
	{.config = TOKENS("a\\u000ab", "null"),
		.why = "column `tokens` is encoded as `a?b`, which does not hold tokens; must be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with an integer type, bytes, "
		       "or an integer"},
	{.config = CONFIG("\"x\", \"y\"", "\"str\", \"pkl\"", "null, null"),
		.why = "no column is called tokens or input_ids; set `column` to the one with the "
		       "tokens, of: x: str, y: pkl"},
	{.config = CONFIG("\"id\", \"text\"", "\"int\", \"str\"", "8, null"),
		.why = "no column is called tokens or input_ids; set `column` to the one with the "
		       "tokens, of: id: int (8 bytes), text: str"},
	{.config = CONFIG("\"x\", \"y\"", "\"ndarray\", \"ndarray:int32\"", "null, null"),
		.why = "no column is called tokens or input_ids; set `column` to the one with the "
		       "tokens, of: x: ndarray, y: ndarray:int32"},
	/* samples */
	{.sample = "",
		.bytes = 0,
		.why = "sample 1: its lengths and columns take 4 bytes; its offsets span 0"},
	{.sample = SAMPLE("\22\0\0"),
		.why = "sample 1: its lengths and columns take 4 bytes; its offsets span 3"},
	{.sample = SAMPLE("\23\0\0\0\4\4" FOUR),
		.why = "sample 1: its lengths and columns take 23 bytes; its offsets span 22"},
	{.sample = SAMPLE("\377\377\377\377\4\4" FOUR),
		.why = "sample 1: its lengths and columns take 4294967299 bytes; its offsets span "
		       "22"},
	{.sample = SAMPLE("\0\0\0\0\4\4" FOUR),
		.why = "sample 1: its lengths and columns take 4 bytes; its offsets span 22"},
	{.sample = SAMPLE("\21\0\0\0\4\4\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0"),
		.why = "sample 1: shape makes 4 tokens of 4 bytes; column `tokens` has 15 bytes "
		       "for them"},
	{.sample = SAMPLE("\22\0\0\0\4\3" FOUR),
		.why = "sample 1: shape makes 3 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.sample = SAMPLE("\22\0\0\0\4\5" FOUR),
		.why = "sample 1: shape makes 5 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.sample = SAMPLE("\22\0\0\0\1\4" FOUR),
		.why = "sample 1: shape has 0 dimensions of 2 bytes; must have 1 to 63, and column "
		       "`tokens` is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\374\4" FOUR),
		.why = "sample 1: shape has 63 dimensions of 1 bytes; must have 1 to 63, and "
		       "column `tokens` is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\377\4" FOUR),
		.why = "sample 1: shape has 63 dimensions of 8 bytes; must have 1 to 63, and "
		       "column `tokens` is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\7\4" FOUR),
		.why = "sample 1: shape makes 2199023255812 tokens of 4 bytes; column `tokens` has "
		       "9 bytes for them"},
	{.sample = SAMPLE("\31\0\0\0\7\4\0\0\0\0\0\0\200" FOUR),
		.why = "sample 1: shape makes 9223372036854775812 tokens of 4 bytes; column "
		       "`tokens` has 16 bytes for them"},
	{.sample = SAMPLE("\21\0\0\0\13\4\0\0\0\0\0\0\200\4\0\0\0\0\0\0\0"),
		.why = "sample 1: shape makes over 2^64 tokens; column `tokens` is 17 bytes long"},
	{.config = ARRAYS("null"),
		.sample = SAMPLE("\2\0\0\0\4\0"),
		.why = "column `tokens` has no tokens"},
	{.config = ARRAYS("null"),
		.sample = SAMPLE("\0\0\0\0"),
		.why = "sample 0: column `tokens` is 0 bytes long; its shape alone takes 1"},
	{.config = ARRAYS("17"),
		.sample = SAMPLE("\4\4" FOUR),
		.why = "sample 0: its lengths and columns take 17 bytes; its offsets span 18"},
	{.config = TOKENS("ndarray:int32:4", "15"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: its lengths and columns take 15 bytes; its offsets span 16"},
	{.config = TOKENS("ndarray:int32:5", "16"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: shape makes 5 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.config = TOKENS("ndarray:int32:4", "null"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: its lengths and columns take 5 bytes; its offsets span 16"},
	{.config = TOKENS("ndarray:int32:4294967295", "16"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: shape makes 4294967295 tokens of 4 bytes; column `tokens` has 16 "
		       "bytes for them"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\23\0\0\0\100\4\2" FOUR),
		.why = "token 0 is 8589934593; must be 0 to 4294967295"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\23\0\0\0\42\4\4" FOUR),
		.why = "sample 0: type is 34, a floating-point type; must be 8, 9, 16, 17, 32, 33, "
		       "64 or 65"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\1\0\0\0\41"),
		.why = "sample 0: column `tokens` is 1 bytes long; its shape alone takes 2"},
	{.config = TOKENS("bytes", "null"),
		.sample = SAMPLE("\14\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"),
		.why = "sample 0: column `tokens` is 12 bytes long, not a multiple of 8, the token "
		       "size: it is truncated, or dtype is wrong"},
	{.config = TOKENS("bytes", "null"),
		.sample = SAMPLE("\0\0\0\0"),
		.why = "column `tokens` has no tokens"},
	{.config = TOKENS("int", "8"),
		.sample = SAMPLE("\377\377\377\377\377\377\377\377"),
		.why = "token 0 is -1; must be 0 to 4294967295; tokenize the shard again"},
	{.config = CONFIG("\"a\", \"tokens\"", "\"str\", \"ndarray:int32\"", "null, null"),
		.sample = SAMPLE("\377\377\377\377\22\0\0\0xyz\4\4" FOUR),
		.why = "sample 0: its lengths and columns take 4294967321 bytes; its offsets span "
		       "29"},
	{.config = CONFIG("\"a\", \"tokens\"", "\"str\", \"ndarray:int32\"", "4294967295, null"),
		.sample = SAMPLE("\22\0\0\0xyz\4\4" FOUR),
		.why = "sample 0: its lengths and columns take 4294967317 bytes; its offsets span "
		       "25"},
};

static void test_broken(void **state)
{
	struct piece p;

	for (size_t i = 0; i < COUNT(broken); i++) {
		const struct shard_hint hint = {.column = broken[i].column};
		struct shard_facts facts;

		put_broken(&p, &broken[i]);
		assert_line(whole(files_put(*state, "x.mds", p.at, p.n), &hint, &facts),
			broken[i].why, "broken", i);
	}
}

/* ---- a wrong sample in a large shard ---- */

enum { SAMPLES = 100, SAMPLE_TOKENS = 4000 };

static uint8_t
	large[4 + 4 * (SAMPLES + 1) + sizeof(usual_config) + SAMPLES * (8 + 4 * SAMPLE_TOKENS)];

/*
 * All tokens are 0. Every shape is right, except that of sample @odd. Returns the number of bytes.
 */
static size_t make_large(size_t odd)
{
	size_t begin = 4 + 4 * (SAMPLES + 1) + strlen(usual_config),
	       sample = 4 + 3 + 4 * SAMPLE_TOKENS, n;
	struct piece p = {.n = 0};

	memset(large, 0, sizeof(large));
	piece_number(&p, SAMPLES, 4);
	for (size_t i = 0; i <= SAMPLES; i++)
		piece_number(&p, begin + i * sample, 4);
	piece_text(&p, usual_config);
	memcpy(large, p.at, n = p.n);
	for (size_t i = 0; i < SAMPLES; i++, n += sample) {
		p.n = 0;
		piece_number(&p, sample - 4, 4);
		piece_number(&p, 5, 1);
		piece_number(&p, i == odd ? SAMPLE_TOKENS - 1 : SAMPLE_TOKENS, 2);
		memcpy(large + n, p.at, p.n);
	}
	assert_true(n > 1 << 20);
	return n;
}

/* The samples of a large shard are checked when they are read, not on opening. */
static void test_late(void **state)
{
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	struct fault fault;
	static uint32_t tokens[SAMPLE_TOKENS];
	size_t n = make_large(60);
	const char *path = files_put(*state, "x.mds", large, n);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	assert_non_null(format);
	struct shard *shard = shard_open(format, path, fd, &hint, &facts, &fault);

	assert_non_null(shard);
	for (uint64_t i = 0; i < SAMPLES; i++) {
		bool fine = shard_read(shard, i * SAMPLE_TOKENS, SAMPLE_TOKENS, tokens, &fault);

		assert_int_equal(fine, i != 60);
		assert_int_equal(shard_try(shard, shard_find(shard, i * SAMPLE_TOKENS),
					 SAMPLE_TOKENS, tokens),
			fine && files_try(fd));
	}
	assert_int_equal(fault.code, FAULT_DATA);
	assert_string_equal(fault.text, "sample 60: shape makes 3999 tokens of 4 bytes; column "
					"`tokens` has 16000 bytes for them");
	shard_close(shard);
	close(fd);
}

/* Describing a compressed shard decodes only its beginning. */
static void test_compressed(void **state)
{
	static uint8_t packed[sizeof(large)];
	struct frames *frames = frames_new(8 << 20);
	const struct shard_hint hint = {.frames = frames};
	struct shard_facts facts;
	struct fault fault;
	static uint32_t tokens[SAMPLE_TOKENS];
	size_t n = ZSTD_compress(packed, sizeof(packed), large, make_large(SAMPLES), 1);

	assert_false(ZSTD_isError(n));
	const char *path = files_put(*state, "x.mds.zstd", packed, n);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	assert_non_null(format);
	assert_int_equal(facts.tokens, SAMPLES * SAMPLE_TOKENS);
	assert_int_equal(frames_bytes(frames), 0);
	struct shard *shard = shard_open(format, path, fd, &hint, &facts, &fault);

	assert_non_null(shard);
	assert_true(shard_read(shard, 8000, SAMPLE_TOKENS, tokens, &fault));
	assert_true(frames_bytes(frames) > sizeof(large) - 100000);
	shard_close(shard);
	close(fd);
	frames_free(frames);
}

/* Rewritten between describing and opening. */
static void test_changed(void **state)
{
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	struct piece p;
	struct fault fault;

	put_usual(&p);
	const char *path = files_put(*state, "x.mds", p.at, p.n);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	assert_non_null(format);
	put_shard(&p, usual_config, SAMPLE("\12\0\0\0\4\2\1\0\0\0\2\0\0\0"),
		SAMPLE("\12\0\0\0\4\2\1\0\0\0\2\0\0\0"));
	files_put(*state, "x.mds", p.at, p.n);
	assert_null(shard_open(format, path, fd, &hint, &facts, &fault));
	assert_string_equal(fault.text, "changed while it was being opened");
	assert_int_equal(ftruncate(fd, 9), -1); /* it is open for reading only */
	assert_int_equal(truncate(path, 9), 0);
	assert_null(shard_open(format, path, fd, &hint, &facts, &fault));
	assert_string_equal(
		fault.text, "its size is 9 bytes; a shard of one sample has at least 12");
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_good),
		TEST(test_tokens),
		TEST(test_broken),
		TEST(test_late),
		TEST(test_compressed),
		TEST(test_changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
