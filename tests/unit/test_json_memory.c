/*
 * Memory runs out at each allocation of the JSON library: that is not a fault of the file, and no
 * character of a path or digest is dropped without a word.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/shard/format.h"
#include "tests/unit/files.h"

#include <jansson.h>

static unsigned allocations; /* that still succeed */

static void *allocate(size_t n)
{
	if (allocations-- > 0)
		return malloc(n);
	allocations = 0;
	errno = ENOMEM;
	return NULL;
}

static bool read_index(struct files *f, struct fault *fault)
{
	static const char text[] = "{\"key\": \"value\", \"shards\": [{\"a\": [1, \"b\"]}]}";
	json_t *whole = json_object_of(text, strlen(text), fault);

	(void)f;
	json_decref(whole);
	return whole;
}

static bool read_manifest(struct files *f, struct fault *fault)
{
	struct dataset m = {0};
	bool done = manifest_read(&m, files_path(f, "m.jsonl"), ".", NULL, NULL, fault);

	if (done)
		assert_int_equal(m.list.count, 2);
	else
		assert_non_null(strstr(fault->text, "m.jsonl:"));
	dataset_close(&m);
	return done;
}

static void memory_that_runs_out_is_no_fault_of_the_file(void **state)
{
	static bool (*const readers[])(struct files *, struct fault *) = {
		read_index, read_manifest};
	static const char lines[] =
		"{\"path\":\"a.bin\",\"format\":\"flat\",\"dtype\":\"u16\",\"tokens\":20,"
		"\"size\":40,\"digest\":\"0123456789abcdef\"}\n"
		"{\"path\":\"b.bin\",\"format\":\"flat\",\"dtype\":\"u16\",\"tokens\":9,"
		"\"size\":18,\"digest\":\"0123456789abcdef\"}\n";

	files_put(*state, "m.jsonl", lines, strlen(lines));
	json_set_alloc_funcs(allocate, free);
	for (size_t i = 0; i < COUNT(readers); i++) {
		unsigned failed = 0;

		for (bool done = false; !done; failed += !done) {
			struct fault fault = {0};

			allocations = failed;
			done = readers[i](*state, &fault);
			if (!done && fault.code != FAULT_MEMORY)
				fail_msg("allocation %u: %s", failed, fault.text);
		}
		assert_true(failed > 10);
	}
	json_set_alloc_funcs(malloc, free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(memory_that_runs_out_is_no_fault_of_the_file,
			files_set_up, files_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
