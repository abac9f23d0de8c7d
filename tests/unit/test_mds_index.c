/* MDS's index.json: broken ones, directories, and shards that exist raw and compressed. */
#include "daemon/shard/json.h"
#include "daemon/shard/mds_index.h"
#include "tests/unit/allocations.h"
#include "tests/unit/mds.h"

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

/* '@' becomes the size of the shard. */
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
	{"", "index.json: invalid JSON at byte 0: '{' is missing"},
	{"x", "index.json: invalid JSON at byte 0: '{' is missing"},
	{"[]", "index.json: invalid JSON at byte 0: '{' is missing"},
	{"{", "index.json: invalid JSON at byte 1: unexpected token near end of file"},
	{"{}", "index.json: `shards` is missing; must be an array"},
	{"{\"shards\": 5}", "index.json: invalid JSON at byte 11: '[' is missing"},
	{"{\"shards\": [",
		"index.json: invalid JSON at byte 12: unexpected token near end of file"},
	{"{\"shards\": [5], \"version\": 2}",
		"index.json: shards[0] is an integer; must be an object"},
	{"{\"shards\": [" GOOD "], \"version\": 2",
		"index.json: invalid JSON at byte 313: ',' is missing"},
	{"{\"shards\": [" GOOD "], \"version\": 2} {}",
		"index.json: invalid JSON at byte 315: extra characters after the end"},
	{"{\"shards\": [" GOOD " " GOOD "], \"version\": 2}",
		"index.json: invalid JSON at byte 299: ',' is missing"},
	{"{\"shards\": [" GOOD ",], \"version\": 2}",
		"index.json: invalid JSON at byte 300: unexpected token near ']'"},
	{"{\"shards\": [" GOOD "], \"shards\": [], \"version\": 2}",
		"index.json: invalid JSON at byte 300: a key occurs twice"},
	{"{\"shards\": [" GOOD "], \"version\": 2, \"version\": 2}",
		"index.json: invalid JSON at byte 314: a key occurs twice"},
	{"{5: 6}", "index.json: invalid JSON at byte 1: a key is not a string"},
	{"{\"shards\": [" GOOD "]}", "index.json: version is missing; must be 2"},
	{"{\"shards\": [" GOOD "], \"version\": 1}", "index.json: version is 1; must be 2"},
	{"{\"shards\": [" GOOD "], \"version\": \"2\"}",
		"index.json: version is a string; must be 2"},
	{"{\"shards\": [], \"version\": 2}",
		"is not among the 0 shards of index.json; move it away, or rewrite the index"},
	{INDEX("{}"), "index.json: shards[0].version is missing; must be 2"},
	{INDEX("{\"version\": 2, \"version\": 2}"),
		"index.json: invalid JSON at byte 36: duplicate object key near '\"version\"'"},
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
		"index.json: shards[0].samples is a fraction; must be an integer"},
	{INDEX(ENTRY_OF("", FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"index.json: shards[0].column_names is missing; must be an array"},
	{INDEX(ENTRY_OF("\"column_encodings\": [\"ndarray:uint32\"], \"column_names\": "
			"[\"tokens\"], \"column_sizes\": [null], ",
		 FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"its columns are tokens: ndarray:int32; index.json: those of shards[0] are tokens: "
		"ndarray:uint32"},
	{INDEX(ENTRY_OF("\"column_encodings\": [\"ndarray:int32\"], \"column_names\": "
			"[\"tokens\"], \"column_sizes\": [18], ",
		 FILE_INFO("\"shard.00000.mds\"", "@"), "3", "null", "2", "\"mds\"")),
		"its columns are tokens: ndarray:int32; index.json: those of shards[0] are tokens: "
		"ndarray:int32 (18 bytes)"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "@1")),
		"its size is 267 bytes; index.json: shards[0].raw_data.bytes is 2671"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "\"@\"")),
		"index.json: shards[0].raw_data.bytes is a string; must be an integer"},
	{INDEX(ENTRY("\"shard.00000.mds\"", "99999999999999999999")),
		"index.json: invalid JSON at byte 229: too big integer near "
		"'99999999999999999999'"},
	{RAW("null"), "index.json: shards[0].raw_data is null; must be an object"},
	{RAW("{}"), "index.json: shards[0].raw_data.basename is missing; must be a string"},
	{RAW("\"shard.00000.mds\""),
		"index.json: shards[0].raw_data is a string; must be an object"},
	{NAME("7"), "index.json: shards[0].raw_data.basename is an integer; must be a string"},
	{NAME("\"\""), "index.json: shards[0].raw_data.basename is ''; must be a file name, or "
		       "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"../shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is '../shard.00000.mds'; must be a file "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/../shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is 'a/../shard.00000.mds'; must be a file "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"./shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is './shard.00000.mds'; must be a file "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"/shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is '/shard.00000.mds'; must be a file "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"/etc/passwd\""),
		"index.json: shards[0].raw_data.basename is '/etc/passwd'; must be a file name, or "
		"DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/b/shard.00000.mds\""),
		"index.json: shards[0].raw_data.basename is 'a/b/shard.00000.mds'; must be a file "
		"name, or DIRECTORY/NAME below the index's own directory"},
	{NAME("\"a/\""), "index.json: shards[0].raw_data.basename is 'a/'; must be a file name, or "
			 "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"..\""), "index.json: shards[0].raw_data.basename is '..'; must be a file name, or "
			 "DIRECTORY/NAME below the index's own directory"},
	{NAME("\"shard.00000.mds\\u0000\""), "index.json: invalid JSON at byte 204: \\u0000 is not "
					     "allowed without JSON_ALLOW_NUL"},
	{NAME("\"shard.\\u000a.mds\""), "index.json: shards[0] is 'shard.?.mds', but there is no "
					"such file; add it, or rewrite the index"},
	{NAME("\"shard.00001.mds\""), "index.json: shards[0] is 'shard.00001.mds', but there is no "
				      "such file; add it, or rewrite the index"},
	{NAME("\"d.mds\""), "index.json: shards[0] is 'd.mds', but there is no such file; add it, "
			    "or rewrite the index"},
	{NAME("\"other.mds\""),
		"is not among the 1 shards of index.json; move it away, or rewrite the index"},
	{INDEX(GOOD ", " GOOD), "index.json: shards[0] and shards[1] are both 'shard.00000.mds'; "
				"must be listed once"},
	{INDEX(GOOD ", " ENTRY("\"shard.00001.mds\"", "9")),
		"index.json: shards[1] is 'shard.00001.mds', but there is no such file; add it, or "
		"rewrite the index"},
	{ZIP("5"), "index.json: shards[0].zip_data is an integer; must be an object or null"},
	{ZIP("{}"), "index.json: shards[0].zip_data.basename is missing; must be a string"},
	{ZIP(FILE_INFO("\"../shard.00000.mds.zstd\"", "5")),
		"index.json: shards[0].zip_data.basename is '../shard.00000.mds.zstd'; must be a "
		"file name, or DIRECTORY/NAME below the index's own directory"},
	{ZIP(FILE_INFO("\"shard.00001.mds.zstd\"", "5")),
		"index.json: shards[0].zip_data.basename is 'shard.00001.mds.zstd'; must be "
		"raw_data.basename and an ending like .zstd"},
	{ZIP(FILE_INFO("\"shard.00000.mds\"", "5")),
		"index.json: shards[0].zip_data.basename is 'shard.00000.mds'; must be "
		"raw_data.basename and an ending like .zstd"},
	{ZIP(FILE_INFO("\"shard.00000.mds.zstd\"", "null")),
		"index.json: shards[0].zip_data.bytes is null; must be an integer"},
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
		if (at) /* the directory's name varies */
			memmove(at, at + n + 1, strlen(at + n + 1) + 1);
		assert_line(got, indexes[i].why, "indexes", i);
	}
	assert_int_equal(unlink(files_path(*state, "index.json")), 0);
	make_directory(*state, "index.json");
	assert_line(whole(path, &hint, &facts),
		"index.json: is not a regular file; a shard must be one", "directory", 0);
	remove(files_path(*state, "index.json"));
	files_put(*state, "index.json", "", 0);
	assert_int_equal(truncate(files_path(*state, "index.json"), (off_t)1 << 40), 0);
	assert_line(whole(path, &hint, &facts),
		"index.json: its size is 1099511627776 bytes; must be at most 268435456", "huge",
		0);
}

/* Text that would exhaust memory or the stack. */
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
		"index.json: invalid JSON at byte 2061: maximum parsing depth reached near '['",
		"deep", 0);
	memset(text, '"', BYTES);
	memcpy(text, "{\"shards\": [\"", 13);
	memset(text + 13, 'x', BYTES - 13);
	files_put(*state, "index.json", text, BYTES);
	assert_line(whole(path, &hint, &facts),
		"index.json: the JSON value at byte 12 is longer than 1048576 bytes", "long", 0);
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

/*
 * A merged index in the parent directory must list all shards below, if it belongs to the dataset.
 */
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
	assert_non_null(strstr(whole(path, &hint, &facts), "is not among the 1 shards of "));
	put_index(*state, "b/index.json", INDEX(GOOD), size);
	/* A dataset of its own. */
	assert_line(whole(path, &hint, &facts), "", "merged", 0);
	hint.cache = cache_new(root);
	assert_line(whole(path, &hint, &facts), "", "merged", 1);
	cache_free(hint.cache);
	*strrchr(root, '/') = 0;
	hint.cache = cache_new(root);
	assert_non_null(strstr(whole(path, &hint, &facts), "is not among the 1 shards of "));
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

/* The files that are listed if a shard exists raw and compressed. */
static void test_lists(void **state)
{
	files_put(*state, "index.json", "{}", 2);
	assert_list(*state,
		"index.json: is a Mosaic index by its name, but its shard (*.mds) is missing; add "
		"the shard, or move this file away");
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
			"%s{" COLUMNS "\"format\": \"mds\", \"raw_data\": {\"basename\": \"%s\", "
			"\"bytes\": %zu}, \"samples\": 3, \"version\": 2}",
			i ? ", " : "", name, size);
	}
	fprintf(out, "], \"version\": 2}");
	fclose(out);
	files_put(f, "index.json", text, bytes);
	free(text);
	assert_line(whole(files_path(f, name), &hint, &facts), "", "many", 0);
	assert_int_equal(unlink(files_path(f, "index.json")), 0); /* it is not read again */
	put_file(f, "stray.mds");
	for (int i = 0; i < THREADS; i++) {
		work[i] = (struct work){f, &hint, i};
		assert_int_equal(pthread_create(&thread[i], NULL, describe_some, &work[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_non_null(strstr(whole(files_path(f, "stray.mds"), &hint, &facts),
		"is not among the 10000 shards of "));
	cache_free(hint.cache);
}

static bool keep_none(void *context, uint64_t i, json_t *value, struct fault *fault)
{
	(void)context, (void)i, (void)value, (void)fault;
	return true;
}

/* Memory runs out at each allocation of a parse: that is not a fault of the file. */
static void test_json_memory(void **state)
{
	static const char text[] = "{\"key\": \"value\", \"shards\": [{\"a\": [1, \"b\"]}]}";
	unsigned failed = 0;

	(void)state;
	json_set_alloc_funcs(allocate, free);
	for (unsigned call = 0;; call++, failed++) {
		struct fault fault = {0};
		json_t *rest = NULL;

		allocations = call;
		bool done = json_each(text, strlen(text), "shards", keep_none, NULL, &rest, &fault);

		json_decref(rest);
		if (done)
			break;
		assert_int_equal(fault.code, FAULT_MEMORY);
	}
	assert_true(failed > 10);
	json_set_alloc_funcs(malloc, free);
}

static void test_directory_that_is_gone(void **state)
{
	const struct bytes b = {.path = "/nowhere/./shard.00000.mds"};
	const struct shard_hint hint = {0};
	struct mds_front front = {0};
	struct fault fault;

	(void)state;
	assert_false(mds_check_listed(&b, &hint, &front, &fault));
	assert_int_equal(fault.code, FAULT_IO);
	assert_int_equal(fault.error, ENOENT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_indexes),
		TEST(test_large_json),
		TEST(test_merged),
		TEST(test_lists),
		TEST(test_many),
		cmocka_unit_test(test_json_memory),
		cmocka_unit_test(test_directory_that_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
