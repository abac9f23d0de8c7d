/*
 * MDS: what is read from good shards, the line that each of many broken ones and of broken indexes
 * gets, and what counts where several files are one shard. What Mosaic's own writer writes is read
 * in tests/python.
 */
#include "daemon/shard/cache.h"
#include "daemon/shard/frames.h"
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <zstd.h>

/* ---- shards ---- */

#define CONFIG(names, encodings, sizes)                                                            \
	"{\"column_encodings\": [" encodings "], \"column_names\": [" names                        \
	"], \"column_sizes\": [" sizes "], \"compression\": null, \"format\": \"mds\", "           \
	"\"hashes\": [], \"size_limit\": 67108864, "                                               \
	"\"version\": 2}"

static const char usual_config[] = CONFIG("\"tokens\"", "\"ndarray:int32\"", "null");

/* A sample's bytes, from a literal with zeroes in it. */
#define SAMPLE(literal) literal, sizeof(literal) - 1

#define FOUR "\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"

static const char usual_sample[] = "\22\0\0\0\4\4" FOUR;

enum { USUAL = sizeof(usual_sample) - 1 };

/* Three samples, the second of which may be another. */
static void put_shard(struct piece *p, const char *config, const char *sample, size_t sample_bytes,
	const char *second, size_t second_bytes)
{
	uint64_t at = 4 + 4 * 4 + strlen(config);

	p->n = 0;
	piece_number(p, 3, 4);
	piece_number(p, at, 4);
	piece_number(p, at += sample_bytes, 4);
	piece_number(p, at += second_bytes, 4);
	piece_number(p, at += sample_bytes, 4);
	piece_text(p, config);
	piece_bytes(p, sample, sample_bytes);
	piece_bytes(p, second, second_bytes);
	piece_bytes(p, sample, sample_bytes);
}

static void put_usual(struct piece *p)
{
	put_shard(p, usual_config, usual_sample, USUAL, usual_sample, USUAL);
}

/* Describes, opens and reads all of a file. "": fine, else what was said. */
static const char *whole(const char *path, const struct shard_hint *hint, struct shard_facts *facts)
{
	static _Thread_local struct fault fault;
	struct shard *shard = NULL;
	uint32_t tokens[64];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format;

	assert_true(fd >= 0);
	fault.text[0] = 0;
	format = shard_describe(NULL, path, fd, hint, facts, &fault);
	if (format) {
		assert_string_equal(format->name, "mds");
		shard = shard_open(format, path, fd, hint, facts, &fault);
	}
	for (uint64_t i = 0; shard && !fault.text[0] && i < facts->tokens; i += 64)
		if (!shard_read(shard, i, facts->tokens - i < 64 ? facts->tokens - i : 64, tokens,
			    &fault))
			break;
	shard_close(shard);
	close(fd);
	return fault.text;
}

static void assert_line(const char *got, const char *wanted, const char *name, size_t i)
{
	if (strcmp(got, wanted) != 0)
		fail_msg("%s[%zu]:\n  is     %s\n  should %s", name, i, got, wanted);
}

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
			SAMPLE("\3\0\0\0\22\0\0\0xyz\4\4" FOUR "pp"), 4, {0}},
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

/* The tokens are the tokens, wherever one begins to read. */
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

/* Three samples, a usual first and last one or, where the config is another, three alike. */
struct broken {
	const char *config; /* NULL: usual */
	const char *sample; /* NULL: usual; the second one, all three where the config is another */
	size_t bytes;
	bool has_patch; /* a u32 */
	uint32_t patch_at, patch;
	size_t cut; /* bytes cut off its end */
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
	{PATCH(0, 0), .why = "number of samples is 0: there is no token in it; remove it"},
	{PATCH(0, 4),
		.why = "the last sample ends at byte 1868767867 (offset 4); it is 267 bytes long"},
	{PATCH(0, 2), .why = "the last sample ends at byte 245 (offset 2); it is 267 bytes long"},
	{PATCH(0, 0xffffffff), .why = "number of samples is 4294967295, whose offsets end at byte "
				      "17179869188; it is 267 bytes long"},
	{PATCH(0, 1u) << 30,
		.why = "number of samples is 1073741824, whose offsets end at byte 4294967304; "
		       "it is 267 bytes long"},
	{PATCH(4, 0), .why = "offset 0 is 0; must be 20, where the offsets end, to 267"},
	{PATCH(4, 0xffffffff),
		.why = "offset 0 is 4294967295; must be 20, where the offsets end, to 267"},
	{PATCH(4, 20),
		.why = "config: its JSON is broken at byte 0: unexpected token near end of file"},
	{PATCH(8, 20), .why = "offset 1 is 20; must be 201 to 267"},
	{PATCH(8, 5000), .why = "offset 1 is 5000; must be 201 to 267"},
	{PATCH(12, 20),
		.why = "offset 2 is 20; must be 223 to 267: offsets ascend and end with the file"},
	{PATCH(12, 0x7fffffff), .why = "offset 2 is 2147483647; must be 223 to 267: offsets ascend "
				       "and end with the file"},
	{PATCH(16, 20), .why = "the last sample ends at byte 20 (offset 3); it is 267 bytes long"},
	{.cut = 1, .why = "the last sample ends at byte 267 (offset 3); it is 266 bytes long"},
	{.added = 1, .why = "the last sample ends at byte 267 (offset 3); it is 268 bytes long"},
	/* the config */
	{.config = "",
		.why = "config: its JSON is broken at byte 0: unexpected token near end of file"},
	{.config = "{",
		.why = "config: its JSON is broken at byte 1: string or '}' expected near end of "
		       "file"},
	{.config = "[]", .why = "config: its JSON is an array; must be an object"},
	{.config = "null", .why = "config: its JSON is null; must be an object"},
	{.config = "{} x",
		.why = "config: its JSON is broken at byte 3: something follows its end"},
	{.config = "{\"version\": 2, \"version\": 2}",
		.why = "config: its JSON is broken at byte 24: duplicate object key near "
		       "'\"version\"'"},
	{.config = "{\"version\": \"2\\u0000\"}",
		.why = "config: its JSON is broken at byte 21: \\u0000 is not allowed without "
		       "JSON_ALLOW_NUL "
		       "near '\"2\\u0000\"'"},
	{.config = "{\"version\": 99999999999999999999}",
		.why = "config: its JSON is broken at byte 32: too big integer near "
		       "'99999999999999999999'"},
	{.config = "{\"version\": \xff\xfe}",
		.why = "config: its JSON is broken at byte 12: unable to decode byte 0xff"},
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
		.why = "config: column_names has 0 entries, column_names 0; must be one number, 1 "
		       "to 256"},
	{.config = CONFIG("\"a\"", "\"int\", \"int\"", "8"),
		.why = "config: column_encodings has 2 entries, column_names 1; must be one "
		       "number, 1 to "
		       "256"},
	{.config = CONFIG("\"a\"", "\"int\"", ""),
		.why = "config: column_sizes has 0 entries, column_names 1; must be one number, 1 "
		       "to 256"},
	{.config = CONFIG("1", "\"int\"", "8"),
		.why = "config: column_names[0] is a whole number; must be a string"},
	{.config = CONFIG("\"a\"", "null", "8"),
		.why = "config: column_encodings[0] is null; must be a string"},
	{.config = CONFIG("\"a\"", "\"int\"", "false"),
		.why = "config: column_sizes[0] is false; must be null or a whole number"},
	{.config = CONFIG("\"a\"", "\"int\"", "\"8\""),
		.why = "config: column_sizes[0] is a string; must be null or a whole number"},
	{.config = CONFIG("\"a\"", "\"int\"", "8.0"),
		.why = "config: column_sizes[0] is a fraction; must be null or a whole number"},
	{.config = CONFIG("\"a\"", "\"int\"", "-8"),
		.why = "config: column_sizes[0] is -8; must be null or 0 to 4294967295"},
	{.config = CONFIG("\"a\"", "\"int\"", "4294967296"),
		.why = "config: column_sizes[0] is 4294967296; must be null or 0 to 4294967295"},
	{.config = CONFIG("\"a\", \"a\"", "\"int\", \"int\"", "8, 8"),
		.why = "config: column_names[1] is 'a'; must come after the one before it: names "
		       "are sorted, "
		       "each is there once"},
	{.config = CONFIG("\"b\", \"a\"", "\"int\", \"int\"", "8, 8"),
		.why = "config: column_names[1] is 'a'; must come after the one before it: names "
		       "are sorted, "
		       "each is there once"},
	/* which column */
	{.column = "labels",
		.why = "there is no column labels; say which column holds tokens (`column:`); it "
		       "has tokens: "
		       "ndarray:int32"},
	{.config = TOKENS("pkl", "null"),
		.why = "column `tokens` is encoded as `pkl`, which is a pickle; must be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("str", "null"),
		.why = "column `tokens` is encoded as `str`, which is no tokens; must be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("json", "null"),
		.why = "column `tokens` is encoded as `json`, which is no tokens; must be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("ndarray:float32", "null"),
		.why = "column `tokens` is encoded as `ndarray:float32`, which is no tokens; must "
		       "be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, "
		       "bytes, or a "
		       "whole number"},
	{.config = TOKENS("ndarray:", "null"),
		.why = "column `tokens` is encoded as `ndarray:`, which is no tokens; must be "
		       "ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("ndarray:int32:", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:`, which is no tokens; must "
		       "be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("ndarray:int32:0", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:0`, which is no tokens; must "
		       "be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, "
		       "bytes, or a "
		       "whole number"},
	{.config = TOKENS("ndarray:int32:-4", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:-4`, which is no tokens; must "
		       "be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, "
		       "bytes, or a "
		       "whole number"},
	{.config = TOKENS("ndarray:int32:4,", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:4,`, which is no tokens; must "
		       "be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, "
		       "bytes, or a "
		       "whole number"},
	{.config = TOKENS("ndarray:int32:4:4", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:4:4`, which is no tokens; "
		       "must be "
		       "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, "
		       "bytes, or a "
		       "whole number"},
	{.config = TOKENS("ndarray:int32:99999999999999999999", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:99999999999999999999`, which "
		       "is no "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a "
		       "whole-number "
		       "type, bytes, or a whole number"},
	{.config = TOKENS("ndarray:int32:65536,65536,65536,65536", "16"),
		.why = "column `tokens` is encoded as `ndarray:int32:65536,65536,65536,65536`, "
		       "which is no "
		       "tokens; must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with a "
		       "whole-number "
		       "type, bytes, or a whole number"},
	{.config = TOKENS("ndarrays", "null"),
		.why = "column `tokens` is encoded as `ndarrays`, which is no tokens; must be "
		       "ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("uint128", "16"),
		.why = "column `tokens` is encoded as `uint128`, which is no tokens; must be "
		       "ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = TOKENS("a\\u000ab", "null"),
		.why = "column `tokens` is encoded as `a?b`, which is no tokens; must be ndarray, "
		       "ndarray:DTYPE or ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a "
		       "whole "
		       "number"},
	{.config = CONFIG("\"x\", \"y\"", "\"str\", \"pkl\"", "null, null"),
		.why = "no column holds tokens; say which column holds tokens (`column:`); it has "
		       "x: str, y: "
		       "pkl"},
	{.config = CONFIG("\"id\", \"text\"", "\"int\", \"str\"", "8, null"),
		.why = "no column holds tokens; say which column holds tokens (`column:`); it has "
		       "id: int (8 "
		       "bytes), text: str"},
	{.config = CONFIG("\"x\", \"y\"", "\"ndarray\", \"ndarray:int32\"", "null, null"),
		.why = "several columns may hold tokens; say which column holds tokens "
		       "(`column:`); it has "
		       "x: ndarray, y: ndarray:int32"},
	/* samples */
	{.sample = "",
		.bytes = 0,
		.why = "sample 1: its lengths and columns make up 4 bytes; its offsets leave it 0"},
	{.sample = SAMPLE("\22\0\0"),
		.why = "sample 1: its lengths and columns make up 4 bytes; its offsets leave it 3"},
	{.sample = SAMPLE("\23\0\0\0\4\4" FOUR),
		.why = "sample 1: its lengths and columns make up 23 bytes; its offsets leave it "
		       "22"},
	{.sample = SAMPLE("\377\377\377\377\4\4" FOUR),
		.why = "sample 1: its lengths and columns make up 4294967299 bytes; its offsets "
		       "leave it 22"},
	{.sample = SAMPLE("\0\0\0\0\4\4" FOUR),
		.why = "sample 1: its lengths and columns make up 4 bytes; its offsets leave it "
		       "22"},
	{.sample = SAMPLE("\21\0\0\0\4\4\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0"),
		.why = "sample 1: shape makes 4 tokens of 4 bytes; column `tokens` has 15 bytes "
		       "for them"},
	{.sample = SAMPLE("\16\0\0\0\4\3\1\0\0\0\2\0\0\0\3\0\0\0"),
		.why = "sample 1 has 3 tokens, sample 0 has 4; all must have the same number: a "
		       "window is a "
		       "sample"},
	{.sample = SAMPLE("\22\0\0\0\4\3" FOUR),
		.why = "sample 1: shape makes 3 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.sample = SAMPLE("\22\0\0\0\4\5" FOUR),
		.why = "sample 1: shape makes 5 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.sample = SAMPLE("\22\0\0\0\1\4" FOUR),
		.why = "sample 1: shape has 0 dimensions of 2 bytes; must have 1 to 63, and column "
		       "`tokens` "
		       "is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\374\4" FOUR),
		.why = "sample 1: shape has 63 dimensions of 1 bytes; must have 1 to 63, and "
		       "column `tokens` "
		       "is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\377\4" FOUR),
		.why = "sample 1: shape has 63 dimensions of 8 bytes; must have 1 to 63, and "
		       "column `tokens` "
		       "is 18 bytes long"},
	{.sample = SAMPLE("\22\0\0\0\7\4" FOUR),
		.why = "sample 1: shape makes 2199023255812 tokens of 4 bytes; column `tokens` has "
		       "9 bytes "
		       "for them"},
	{.sample = SAMPLE("\31\0\0\0\7\4\0\0\0\0\0\0\200" FOUR),
		.why = "sample 1: shape makes 9223372036854775812 tokens of 4 bytes; column "
		       "`tokens` has 16 "
		       "bytes for them"},
	{.sample = SAMPLE("\21\0\0\0\13\4\0\0\0\0\0\0\200\4\0\0\0\0\0\0\0"),
		.why = "sample 1: shape makes over 2^64 tokens; column `tokens` is 17 bytes long"},
	{.sample = SAMPLE("\2\0\0\0\4\0"), .why = "sample 1: column `tokens` has no tokens"},
	{.config = ARRAYS("null"),
		.sample = SAMPLE("\2\0\0\0\4\0"),
		.why = "sample 0: column `tokens` has no tokens"},
	{.config = ARRAYS("null"),
		.sample = SAMPLE("\0\0\0\0"),
		.why = "sample 0: column `tokens` is 0 bytes long; its shape alone takes 1"},
	{.config = ARRAYS("17"),
		.sample = SAMPLE("\4\4" FOUR),
		.why = "sample 0: its lengths and columns make up 17 bytes; its offsets leave it "
		       "18"},
	{.config = TOKENS("ndarray:int32:4", "15"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: its lengths and columns make up 15 bytes; its offsets leave it "
		       "16"},
	{.config = TOKENS("ndarray:int32:5", "16"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: shape makes 5 tokens of 4 bytes; column `tokens` has 16 bytes "
		       "for them"},
	{.config = TOKENS("ndarray:int32:4", "null"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: its lengths and columns make up 5 bytes; its offsets leave it "
		       "16"},
	{.config = TOKENS("ndarray:int32:4294967295", "16"),
		.sample = SAMPLE(FOUR),
		.why = "sample 0: shape makes 4294967295 tokens of 4 bytes; column `tokens` has 16 "
		       "bytes for "
		       "them"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\23\0\0\0\100\4\2" FOUR),
		.why = "token 0 is 8589934593; must be 0 to 4294967295"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\23\0\0\0\42\4\4" FOUR),
		.why = "sample 0: type is 34, which is a fraction; must be 8, 9, 16, 17, 32, 33, "
		       "64 or 65"},
	{.config = TOKENS("ndarray", "null"),
		.sample = SAMPLE("\1\0\0\0\41"),
		.why = "sample 0: column `tokens` is 1 bytes long; its shape alone takes 2"},
	{.config = TOKENS("bytes", "null"),
		.sample = SAMPLE("\14\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"),
		.why = "sample 0: column `tokens` is 12 bytes long, no multiple of 8, the size of "
		       "a token: "
		       "it is cut short, or `dtype` is wrong"},
	{.config = TOKENS("bytes", "null"),
		.sample = SAMPLE("\0\0\0\0"),
		.why = "sample 0: column `tokens` has no tokens"},
	{.config = TOKENS("int", "8"),
		.sample = SAMPLE("\377\377\377\377\377\377\377\377"),
		.why = "token 0 is -1; must be 0 to 4294967295"},
	{.config = CONFIG("\"a\", \"tokens\"", "\"str\", \"ndarray:int32\"", "null, null"),
		.sample = SAMPLE("\377\377\377\377\22\0\0\0xyz\4\4" FOUR),
		.why = "sample 0: its lengths and columns make up 4294967321 bytes; its offsets "
		       "leave it 29"},
	{.config = CONFIG("\"a\", \"tokens\"", "\"str\", \"ndarray:int32\"", "4294967295, null"),
		.sample = SAMPLE("\22\0\0\0xyz\4\4" FOUR),
		.why = "sample 0: its lengths and columns make up 4294967317 bytes; its offsets "
		       "leave it 25"},
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

/* ---- a shard that lies in a large file ---- */

enum { SAMPLES = 100, SAMPLE_TOKENS = 4000 };

static uint8_t
	large[4 + 4 * (SAMPLES + 1) + sizeof(usual_config) + SAMPLES * (8 + 4 * SAMPLE_TOKENS)];

/* All tokens are 0. Each shape is honest but that of sample @odd. Its bytes. */
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

/* Too large to be looked through when it is opened: each sample is looked at when it is read. */
static void test_late(void **state)
{
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	struct fault fault = {.text = ""};
	static uint32_t tokens[SAMPLE_TOKENS];
	size_t n = make_large(60);
	const char *path = files_put(*state, "x.mds", large, n);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format = shard_describe(NULL, path, fd, &hint, &facts, &fault);

	assert_string_equal(fault.text, "");
	struct shard *shard = shard_open(format, path, fd, &hint, &facts, &fault);

	assert_string_equal(fault.text, "");
	for (uint64_t i = 0; i < SAMPLES; i++) {
		bool fine = shard_read(shard, i * SAMPLE_TOKENS, SAMPLE_TOKENS, tokens, &fault);

		assert_int_equal(fine, i != 60);
		assert_int_equal(shard_try(shard, shard_find(shard, i * SAMPLE_TOKENS),
					 SAMPLE_TOKENS, tokens),
			fine && files_try(fd));
	}
	assert_int_equal(fault.code, FAULT_DATA);
	assert_string_equal(fault.text,
		"sample 60: shape makes 3999 tokens of 4 bytes; column `tokens` "
		"has 16000 bytes for them");
	shard_close(shard);
	close(fd);
}

/* Of a compressed shard no more than its begin is decoded to describe it. */
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

	assert_string_equal(fault.text, "");
	assert_int_equal(facts.tokens, SAMPLES * SAMPLE_TOKENS);
	assert_int_equal(frames_bytes(frames), 0);
	struct shard *shard = shard_open(format, path, fd, &hint, &facts, &fault);

	assert_string_equal(fault.text, "");
	assert_true(shard_read(shard, 8000, SAMPLE_TOKENS, tokens, &fault));
	assert_true(frames_bytes(frames) > sizeof(large) - 100000);
	shard_close(shard);
	close(fd);
	frames_free(frames);
}

/* Written anew between the two. */
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
	assert_string_equal(fault.text, "it was written anew while it was opened");
	assert_int_equal(ftruncate(fd, 9), -1); /* it is open to be read */
	assert_int_equal(truncate(path, 9), 0);
	assert_null(shard_open(format, path, fd, &hint, &facts, &fault));
	assert_string_equal(
		fault.text, "its size is 9 bytes; a shard of one sample has at least 12");
	close(fd);
}

/* ---- index.json ---- */

#define COLUMNS                                                                                    \
	"\"column_encodings\": [\"ndarray:int32\"], \"column_names\": [\"tokens\"], "              \
	"\"column_sizes\": "                                                                       \
	"[null], "
#define FILE_INFO(name, bytes) "{\"basename\": " name ", \"bytes\": " bytes ", \"hashes\": {}}"
#define ENTRY_OF(columns, raw, samples, zip, version, format)                                      \
	"{" columns "\"compression\": null, \"format\": " format                                   \
	", \"hashes\": [], \"raw_data\": " raw ", \"samples\": " samples                           \
	", \"size_limit\": 67108864, \"version\": " version ", \"zip_data\": " zip "}"
#define ENTRY(name, bytes) ENTRY_OF(COLUMNS, FILE_INFO(name, bytes), "3", "null", "2", "\"mds\"")
#define RAW(raw)	   INDEX(ENTRY_OF(COLUMNS, raw, "3", "null", "2", "\"mds\""))
#define NAME(name)	   INDEX(ENTRY(name, "@"))
#define ZIP(zip)                                                                                   \
	INDEX(ENTRY_OF(COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "3", zip, "2", "\"mds\""))
#define INDEX(entries) "{\"shards\": [" entries "], \"version\": 2}"
#define GOOD	       ENTRY("\"shard.00000.mds\"", "@")

/* With '@' for the size of the shard. */
static const char *put_index(struct files *f, const char *name, const char *text, size_t size)
{
	static struct piece p;
	char number[24];

	p.n = 0;
	snprintf(number, sizeof(number), "%zu", size);
	for (; *text; text++)
		*text == '@' ? piece_text(&p, number) : piece_bytes(&p, text, 1);
	return files_put(f, name, p.at, p.n);
}

static void make_directory(struct files *f, const char *name)
{
	assert_int_equal(mkdir(files_path(f, name), 0755), 0);
}

/* The usual shard as @name. */
static size_t put_file(struct files *f, const char *name)
{
	struct piece p;

	put_usual(&p);
	files_put(f, name, p.at, p.n);
	return p.n;
}

static const struct {
	const char *index, *why;
} indexes[] = {
	{INDEX(GOOD), ""},
	{" { \"other\": {\"deep\": [1]}, \"version\" : 2 , \"shards\" : [ " GOOD
	 " ] , \"more\": null } \n",
		""},
	{NAME("\"shard.00000.mds\""), ""},
	{ZIP(FILE_INFO("\"shard.00000.mds.zstd\"", "5")), ""},
	{ZIP("{\"basename\": \"shard.00000.mds.br\", \"bytes\": 7}"), ""},
	/* broken */
	{"", "index.json: its JSON is broken at byte 0: '{' is missing"},
	{"x", "index.json: its JSON is broken at byte 0: '{' is missing"},
	{"[]", "index.json: its JSON is broken at byte 0: '{' is missing"},
	{"{", "index.json: its JSON is broken at byte 1: unexpected token near end of file"},
	{"{}", "index.json: `shards` is missing; must be an array"},
	{"{\"shards\": 5}", "index.json: its JSON is broken at byte 11: '[' is missing"},
	{"{\"shards\": [",
		"index.json: its JSON is broken at byte 12: unexpected token near end of file"},
	{"{\"shards\": [5], \"version\": 2}",
		"index.json: shards[0] is a whole number; must be an object"},
	{"{\"shards\": [" GOOD "], \"version\": 2",
		"index.json: its JSON is broken at byte 313: ',' is missing"},
	{"{\"shards\": [" GOOD "], \"version\": 2} {}",
		"index.json: its JSON is broken at byte 315: something follows its end"},
	{"{\"shards\": [" GOOD " " GOOD "], \"version\": 2}",
		"index.json: its JSON is broken at byte 299: ',' is missing"},
	{"{\"shards\": [" GOOD ",], \"version\": 2}",
		"index.json: its JSON is broken at byte 300: unexpected token near ']'"},
	{"{\"shards\": [" GOOD "], \"shards\": [], \"version\": 2}",
		"index.json: its JSON is broken at byte 300: a key that is there twice"},
	{"{\"shards\": [" GOOD "], \"version\": 2, \"version\": 2}",
		"index.json: its JSON is broken at byte 314: a key that is there twice"},
	{"{5: 6}", "index.json: its JSON is broken at byte 1: a key that is no string"},
	{"{\"shards\": [" GOOD "]}", "index.json: version is missing; must be 2"},
	{"{\"shards\": [" GOOD "], \"version\": 1}", "index.json: version is 1; must be 2"},
	{"{\"shards\": [" GOOD "], \"version\": \"2\"}",
		"index.json: version is a string; must be 2"},
	{"{\"shards\": [], \"version\": 2}", "it is not among the 0 shards of index.json; move it "
					     "away, or write the index anew"},
	{INDEX("{}"), "index.json: shards[0].version is missing; must be 2"},
	{INDEX("{\"version\": 2, \"version\": 2}"), "index.json: its JSON is broken at byte 36: "
						    "duplicate object key near '\"version\"'"},
	{INDEX(ENTRY_OF(
		 COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "1", "\"mds\"")),
		"index.json: shards[0].version is 1; must be 2"},
	{INDEX(ENTRY_OF(
		 COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"csv\"")),
		"index.json: shards[0].format is 'csv'; must be mds"},
	{INDEX(ENTRY_OF(
		 COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "4", "null", "2", "\"mds\"")),
		"number of samples is 3; index.json: shards[0].samples is 4"},
	{INDEX(ENTRY_OF(
		 COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "-3", "null", "2", "\"mds\"")),
		"index.json: shards[0].samples is -3; must be 0 to 4294967295"},
	{INDEX(ENTRY_OF(
		 COLUMNS, FILE_INFO("\"shard.00000.mds\"", "@"), "3.0", "null", "2", "\"mds\"")),
		"index.json: shards[0].samples is a fraction; must be a whole number"},
	{INDEX(ENTRY_OF("", FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"index.json: shards[0].column_names is missing; must be an array"},
	{INDEX(ENTRY_OF(
		 "\"column_encodings\": [\"ndarray:uint32\"], \"column_names\": [\"tokens\"], "
		 "\"column_sizes\": [null], ",
		 FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"its columns are tokens: ndarray:int32; index.json: those of shards[0] are tokens: "
		"ndarray:uint32"},
	{INDEX(ENTRY_OF(
		 "\"column_encodings\": [\"ndarray:int32\"], \"column_names\": [\"tokens\"], "
		 "\"column_sizes\": [18], ",
		 FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"its columns are tokens: ndarray:int32; index.json: those of shards[0] are tokens: "
		"ndarray:int32 (18 bytes)"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "@1")),
		"its size is 267 bytes; index.json: shards[0].raw_data.bytes is 2671"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "\"@\"")),
		"index.json: shards[0].raw_data.bytes is a string; must be a whole number"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "99999999999999999999")),
		"index.json: its JSON is broken at byte 229: too big integer near "
		"'99999999999999999999'"},
	{RAW("null"), "index.json: shards[0].raw_data is null; must be an object"},
	{RAW("{}"), "index.json: shards[0].raw_data.basename is missing; must be a string"},
	{RAW("\"shard.00000.mds\""),
		"index.json: shards[0].raw_data is a string; must be an object"},
	{NAME("7"), "index.json: shards[0].raw_data.basename is a whole number; must be a string"},
	{NAME("\"\""), "index.json: shards[0].raw_data.basename is ''; must be a file's name, or "
		       "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"../shard.00000.mds\""), "index.json: shards[0].raw_data.basename is "
					 "'../shard.00000.mds'; must be a file's name, or "
					 "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/../shard.00000.mds\""), "index.json: shards[0].raw_data.basename is "
					   "'a/../shard.00000.mds'; must be a file's name, "
					   "or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"./shard.00000.mds\""), "index.json: shards[0].raw_data.basename is "
					"'./shard.00000.mds'; must be a file's name, or "
					"DIRECTORY/NAME below the index's own directory"},
	{NAME("\"/shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is '/shard.00000.mds'; must "
		"be a file's name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"/etc/passwd\""),
		"index.json: shards[0].raw_data.basename is '/etc/passwd'; must be a "
		"file's name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/b/shard.00000.mds\""), "index.json: shards[0].raw_data.basename is "
					  "'a/b/shard.00000.mds'; must be a file's name, or "
					  "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/\""),
		"index.json: shards[0].raw_data.basename is 'a/'; must be a file's name, or "
		"DIRECTORY/NAME below the index's own directory"},
	{NAME("\"..\""),
		"index.json: shards[0].raw_data.basename is '..'; must be a file's name, or "
		"DIRECTORY/NAME below the index's own directory"},
	{NAME("\"shard.00000.mds\\u0000\""), "index.json: its JSON is broken at byte 204: \\u0000 "
					     "is not allowed without JSON_ALLOW_NUL"},
	{NAME("\"shard.\\u000a.mds\""),
		"index.json: shards[0] is 'shard.?.mds', and no such file is there; "
		"add it, or write the index anew"},
	{NAME("\"shard.00001.mds\""),
		"index.json: shards[0] is 'shard.00001.mds', and no such file is "
		"there; add it, or write the index anew"},
	{NAME("\"d.mds\""),
		"index.json: shards[0] is 'd.mds', and no such file is there; add it, or write "
		"the index anew"},
	{NAME("\"other.mds\""), "it is not among the 1 shards of index.json; move it away, or "
				"write the index anew"},
	{INDEX(GOOD ", " GOOD),
		"index.json: shards[0] and shards[1] are both 'shard.00000.mds'; must be one"},
	{INDEX(GOOD ", " ENTRY("\"shard.00001.mds\"", "9")),
		"index.json: shards[1] is 'shard.00001.mds', and no such file is there; add it, or "
		"write the "
		"index anew"},
	{ZIP("5"), "index.json: shards[0].zip_data is a whole number; must be an object or null"},
	{ZIP("{}"), "index.json: shards[0].zip_data.basename is missing; must be a string"},
	{ZIP(FILE_INFO("\"../shard.00000.mds.zstd\"", "5")),
		"index.json: shards[0].zip_data.basename is '../shard.00000.mds.zstd'; must be a "
		"file's "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{ZIP(FILE_INFO("\"shard.00001.mds.zstd\"", "5")),
		"index.json: shards[0].zip_data.basename is 'shard.00001.mds.zstd'; must be "
		"raw_data.basename and an ending like .zstd"},
	{ZIP(FILE_INFO("\"shard.00000.mds\"", "5")),
		"index.json: shards[0].zip_data.basename is 'shard.00000.mds'; must be "
		"raw_data.basename and "
		"an ending like .zstd"},
	{ZIP(FILE_INFO("\"shard.00000.mds.zstd\"", "null")),
		"index.json: shards[0].zip_data.bytes is null; must be a whole number"},
	{ZIP("{\"basename\": \"shard.00000.mds.zstd\", \"bytes\": 5, \"hashes\": {\"xxh64\": "
	     "\"12\"}}"),
		"index.json: shards[0].zip_data.hashes.xxh64 is '12'; must be 16 hex digits"},
};

static void test_indexes(void **state)
{
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	char path[128];
	size_t size = put_file(*state, "shard.00000.mds");
	const char *directory = ((struct files *)*state)->directory;
	size_t n = strlen(directory);

	strcpy(path, files_path(*state, "shard.00000.mds"));
	put_file(*state, "other.mds");
	make_directory(*state, "d.mds");
	for (size_t i = 0; i < COUNT(indexes); i++) {
		char got[1024], *at;

		put_index(*state, "index.json", indexes[i].index, size);
		snprintf(got, sizeof(got), "%s", whole(path, &hint, &facts));
		at = strstr(got, directory);
		if (at) /* the directory's name is another each time */
			memmove(at, at + n + 1, strlen(at + n + 1) + 1);
		assert_line(got, indexes[i].why, "indexes", i);
	}
	assert_int_equal(unlink(files_path(*state, "index.json")), 0);
	make_directory(*state, "index.json");
	assert_line(whole(path, &hint, &facts),
		"index.json: is no regular file; a shard must be one", "directory", 0);
	remove(files_path(*state, "index.json"));
	files_put(*state, "index.json", "", 0);
	assert_int_equal(truncate(files_path(*state, "index.json"), (off_t)1 << 40), 0);
	assert_line(whole(path, &hint, &facts),
		"index.json: its size is 1099511627776 bytes; must be at most 268435456", "huge",
		0);
}

/* Text that would take memory out of proportion, or the stack. */
static void test_large_json(void **state)
{
	enum { BYTES = 3 << 20 };
	const struct shard_hint hint = {0};
	struct shard_facts facts;
	static char text[BYTES + 64];
	char path[128];

	put_file(*state, "shard.00000.mds");
	strcpy(path, files_path(*state, "shard.00000.mds"));
	memset(text, '[', BYTES);
	memcpy(text, "{\"shards\": [", 12);
	files_put(*state, "index.json", text, BYTES);
	assert_line(whole(path, &hint, &facts),
		"index.json: its JSON is broken at byte 2061: maximum parsing depth reached near "
		"'['",
		"deep", 0);
	memset(text, '"', BYTES);
	memcpy(text, "{\"shards\": [\"", 13);
	memset(text + 13, 'x', BYTES - 13);
	files_put(*state, "index.json", text, BYTES);
	assert_line(whole(path, &hint, &facts),
		"index.json: its JSON has a value at byte 12 of over 1048576 bytes", "long", 0);
	remove(files_path(*state, "index.json"));

	uint32_t front[] = {1, 12 + BYTES, 12 + BYTES + 10};

	memset(text, ' ', sizeof(text));
	memcpy(text, front, sizeof(front));
	files_put(*state, "shard.00000.mds", text, front[2]);
	assert_line(whole(path, &hint, &facts),
		"config is 3145728 bytes long (offset 0 is 3145740); must be at most 1048576",
		"config", 0);
}

/* ---- directories ---- */

/* A merged index is above; it must list what lies below it if it belongs to the dataset. */
static void test_merged(void **state)
{
	struct shard_hint hint = {0};
	struct shard_facts facts;
	char path[128], root[128];

	make_directory(*state, "a");
	make_directory(*state, "b");
	size_t size = put_file(*state, "a/shard.00000.mds");

	put_file(*state, "b/shard.00000.mds");
	strcpy(root, files_path(*state, "b"));
	strcpy(path, files_path(*state, "b/shard.00000.mds"));
	put_index(*state, "index.json", INDEX(ENTRY("\"a/shard.00000.mds\"", "@")), size);
	assert_non_null(strstr(whole(path, &hint, &facts), "it is not among the 1 shards of "));
	put_index(*state, "b/index.json", INDEX(GOOD), size);
	/* A dataset of its own. */
	assert_line(whole(path, &hint, &facts), "", "merged", 0);
	hint.cache = cache_new(root);
	assert_line(whole(path, &hint, &facts), "", "merged", 1);
	cache_free(hint.cache);
	*strrchr(root, '/') = 0;
	hint.cache = cache_new(root);
	assert_non_null(strstr(whole(path, &hint, &facts), "it is not among the 1 shards of "));
	cache_free(hint.cache);
	put_index(*state, "index.json",
		INDEX(ENTRY("\"a/shard.00000.mds\"", "@") ", " ENTRY("\"b/shard.00000.mds\"", "@")),
		size);
	hint.cache = cache_new(root);
	assert_line(whole(path, &hint, &facts), "", "merged", 2);
	cache_free(hint.cache);
	put_index(*state, "index.json",
		INDEX(ENTRY("\"a/shard.00000.mds\"", "@") ", " ENTRY(
			"\"b/shard.00000.mds\"", "@1")),
		size);
	hint.cache = cache_new(root);
	assert_non_null(strstr(whole(path, &hint, &facts), "shards[1].raw_data.bytes is "));
	cache_free(hint.cache);
}

static void assert_list(struct files *f, const char *wanted)
{
	struct shard_list list;
	struct fault fault = {.text = ""};
	char got[512] = "";

	if (!shard_list_read(&list, f->directory, &fault))
		snprintf(got, sizeof(got), "%s", fault.text + strlen(f->directory) + 1);
	for (uint64_t i = 0; i < list.count; i++)
		snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s ",
			shard_list_name(&list, i));
	shard_list_free(&list);
	assert_string_equal(got, wanted);
}

/* What counts of several files. */
static void test_lists(void **state)
{
	files_put(*state, "index.json", "{}", 2);
	assert_list(*state,
		"index.json: is a Mosaic index, but no shard that it belongs to (*.mds) "
		"is among the files; "
		"add that, or move this away");
	put_file(*state, "shard.00000.mds.zstd");
	assert_list(*state, "shard.00000.mds.zstd ");
	put_file(*state, "shard.00001.mds.zstd");
	put_file(*state, "shard.00001.mds");
	put_file(*state, "shard.00002.mds.zst");
	put_file(*state, "shard.00003.mds.br");
	assert_list(*state,
		"shard.00000.mds.zstd shard.00001.mds shard.00002.mds.zst shard.00003.mds.br ");
	put_file(*state, "shard.00000.mds");
	put_file(*state, "shard.00003.mds");
	assert_list(*state, "shard.00000.mds shard.00001.mds shard.00002.mds.zst shard.00003.mds ");
}

/* ---- many shards of an index ---- */

enum { MANY = 10000, THREADS = 4 };

struct work {
	struct files *files;
	const struct shard_hint *hint;
	int from;
};

static void *describe_some(void *arg)
{
	const struct work *w = arg;

	for (int i = w->from; i < MANY; i += THREADS) {
		char path[128];
		struct shard_facts facts;

		snprintf(path, sizeof(path), "%s/shard.%05d.mds", w->files->directory, i);
		assert_line(whole(path, w->hint, &facts), "", "many", (size_t)i);
	}
	return NULL;
}

/* It is read once. */
static void test_many(void **state)
{
	struct files *f = *state;
	const struct shard_hint hint = {.cache = cache_new(f->directory)};
	struct work work[THREADS];
	pthread_t thread[THREADS];
	struct shard_facts facts;
	char name[64], *text;
	size_t bytes, size;
	FILE *out = open_memstream(&text, &bytes);

	fprintf(out, "{\"shards\": [");
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "shard.%05d.mds", i);
		size = put_file(f, name);
		fprintf(out,
			"%s{" COLUMNS
			"\"format\": \"mds\", \"raw_data\": {\"basename\": \"%s\", \"bytes\": "
			"%zu}, \"samples\": 3, \"version\": 2}",
			i ? ", " : "", name, size);
	}
	fprintf(out, "], \"version\": 2}");
	fclose(out);
	files_put(f, "index.json", text, bytes);
	free(text);
	assert_line(whole(files_path(f, name), &hint, &facts), "", "many", 0);
	assert_int_equal(unlink(files_path(f, "index.json")), 0); /* nobody reads it again */
	put_file(f, "stray.mds");
	for (int i = 0; i < THREADS; i++) {
		work[i] = (struct work){f, &hint, i};
		assert_int_equal(pthread_create(&thread[i], NULL, describe_some, &work[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_non_null(strstr(whole(files_path(f, "stray.mds"), &hint, &facts),
		"it is not among the 10000 shards of "));
	cache_free(hint.cache);
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
		TEST(test_indexes),
		TEST(test_large_json),
		TEST(test_merged),
		TEST(test_lists),
		TEST(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
