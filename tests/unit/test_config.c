/* Every key of a config arrives in its struct, and keys that are not given have their defaults. */
#include "daemon/config/config.h"
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[96], file[128];

static struct config *load_good(const char *text)
{
	FILE *f = fopen(file, "w");
	struct fault fault;
	struct config *config;

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
	config = config_load(file, &fault);
	if (!config)
		fail_msg("%s", fault.text);
	return config;
}

static void test_keys_not_given_have_their_defaults(void **state)
{
	struct config *c = load_good("streams:\n"
				     "  train:\n"
				     "    seed: 7\n"
				     "    seq_len: 128\n"
				     "    datasets:\n"
				     "      - {name: web, path: a/b}\n");
	const struct config_stream *s = config_stream(c, "train");

	(void)state;
	assert_string_equal(c->path, file);
	assert_string_equal(c->directory, directory);
	assert_string_equal(c->socket, WIRE_SOCKET);
	assert_string_equal(c->state_dir, "/var/lib/tokend");
	assert_null(c->metrics);
	assert_int_equal(c->memory_bytes, UINT64_C(1) << 30);
	assert_int_equal(c->io, CONFIG_IO_AUTO);
	assert_false(c->direct);
	assert_int_equal(c->allow_uids, 0);
	assert_int_equal(c->admin_uids, 0);
	assert_int_equal(c->streams, 1);
	assert_non_null(s);
	assert_null(config_stream(c, "valid"));
	assert_int_equal(s->seed, 7);
	assert_int_equal(s->seq_len, 128);
	assert_int_equal(s->extra, 1);
	assert_int_equal(s->stride, 128);
	assert_int_equal(s->epochs, 0);
	assert_int_equal(s->samples, 0);
	assert_false(s->has_eos);
	assert_true(!s->documents && !s->loss_mask && !s->dataset[0].label_mask);
	assert_false(s->has_vocab);
	assert_int_equal(s->datasets, 1);

	const struct config_dataset *d = s->dataset;

	assert_string_equal(d->name, "web");
	assert_string_equal(d->path, "a/b");
	assert_null(d->manifest);
	assert_string_equal(d->format, "auto");
	assert_int_equal(d->token_bytes, 2);
	assert_true(d->weight == 1);
	assert_false(d->has_weight);
	assert_int_equal(d->shuffle, ORDER_GLOBAL);
	assert_int_equal(d->block, 64);
	assert_int_equal(d->group, 64);
	assert_false(d->slide);
	config_free(c);
}

static const char every_key[] = "socket: run/t.sock\n"
				"state_dir: state\n"
				"memory: 64KiB\n"
				"metrics: '[::1]:9464'\n"
				"io: pread\n"
				"direct: true\n"
				"allow_uids: [0, 1000, 4294967294]\n"
				"admin_uids: [7]\n"
				"streams:\n"
				"  train:\n"
				"    seed: 18446744073709551615\n"
				"    seq_len: 8\n"
				"    extra: 0\n"
				"    stride: 3\n"
				"    eos: 0\n"
				"    documents: true\n"
				"    loss_mask: true\n"
				"    vocab: 4294967296\n"
				"    samples: 10\n"
				"    datasets:\n"
				"      - name: \"ünï/.x\"\n"
				"        path: 'with: colon'\n"
				"        format: flat\n"
				"        dtype: u32\n"
				"        weight: +2.5e-1\n"
				"        shuffle: block\n"
				"        block: 2147483648\n"
				"        group: 1\n"
				"        slide: true\n"
				"        label_mask: ../masks\n"
				"      - {name: zero, path: z, weight: 0, shuffle: none}\n";

/* Debian's users: root is the only member of group root, by its entry in passwd. */
static void test_users_have_names_and_groups(void **state)
{
	struct config *c = load_good("allow_uids: [root, 7, daemon]\n"
				     "admin_uids: ['@root', \"daemon\"]\n"
				     "streams:\n"
				     "  t:\n"
				     "    {seed: 1, seq_len: 8, datasets: [{name: a, path: b}]}\n");

	(void)state;
	assert_int_equal(c->allow_uids, 3);
	assert_int_equal(c->allow_uid[0], 0);
	assert_int_equal(c->allow_uid[1], 7);
	assert_int_equal(c->allow_uid[2], 1);
	assert_int_equal(c->admin_uids, 2);
	assert_int_equal(c->admin_uid[0], 0);
	assert_int_equal(c->admin_uid[1], 1);
	config_free(c);
}

static void test_digest_is_of_the_bytes(void **state)
{
	struct config *a = load_good(every_key), *b = load_good(every_key);
	char other[sizeof(every_key) + 2];

	(void)state;
	assert_true(a->digest == b->digest && a->digest != 0);
	config_free(b);
	snprintf(other, sizeof(other), "%s#", every_key);
	b = load_good(other);
	assert_true(a->digest != b->digest);
	config_free(a);
	config_free(b);
}

static void test_every_key_is_read(void **state)
{
	struct config *c = load_good(every_key);
	const struct config_stream *s = &c->stream[0];
	char expected[128];

	(void)state;
	snprintf(expected, sizeof(expected), "%s/run/t.sock", directory);
	assert_string_equal(c->socket, expected);
	snprintf(expected, sizeof(expected), "%s/state", directory);
	assert_string_equal(c->state_dir, expected);
	assert_int_equal(c->memory_bytes, 65536);
	assert_string_equal(c->metrics, "[::1]:9464");
	assert_int_equal(c->io, CONFIG_IO_PREAD);
	assert_true(c->direct);
	assert_int_equal(c->allow_uids, 3);
	assert_int_equal(c->allow_uid[2], 4294967294);
	assert_int_equal(c->admin_uids, 1);
	assert_int_equal(c->admin_uid[0], 7);
	assert_true(s->seed == UINT64_MAX);
	assert_int_equal(s->extra, 0);
	assert_int_equal(s->stride, 3);
	assert_true(s->has_eos && s->has_vocab && s->documents && s->loss_mask);
	assert_string_equal(s->dataset[0].label_mask, "../masks");
	assert_int_equal(s->eos, 0);
	assert_int_equal(s->vocab, UINT64_C(1) << 32);
	assert_int_equal(s->samples, 10);
	assert_string_equal(s->dataset[0].name, "ünï/.x");
	assert_string_equal(s->dataset[0].path, "with: colon");
	assert_string_equal(s->dataset[0].format, "flat");
	assert_int_equal(s->dataset[0].token_bytes, 4);
	assert_true(s->dataset[0].weight == 0.25 && s->dataset[0].has_weight);
	assert_int_equal(s->dataset[0].shuffle, ORDER_BLOCK);
	assert_true(s->dataset[0].block == UINT32_C(1) << 31);
	assert_int_equal(s->dataset[0].group, 1);
	assert_true(s->dataset[0].slide);
	assert_true(s->dataset[1].weight == 0 && s->dataset[1].has_weight);
	assert_int_equal(s->dataset[1].shuffle, ORDER_NONE);
	config_free(c);
}

static void test_sizes_with_units(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} sizes[] = {{"1", 1}, {"1048576", 1 << 20}, {"3KiB", 3072}, {"512MiB", 512 << 20},
		{"2GiB", UINT64_C(2) << 30}, {"1TiB", UINT64_C(1) << 40}};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		char text[256];

		snprintf(text, sizeof(text),
			"memory: %s\nstreams: {t: {seed: 0, seq_len: 1, datasets: [{name: a, path: "
			"b}]}}\n",
			sizes[i].text);
		struct config *c = load_good(text);

		assert_int_equal(c->memory_bytes, sizes[i].bytes);
		config_free(c);
	}
}

static void test_aliases_are_resolved(void **state)
{
	struct config *c =
		load_good("streams:\n"
			  "  train:\n"
			  "    seed: &seed 5\n"
			  "    seq_len: 8\n"
			  "    datasets: &list [{name: web, path: w}]\n"
			  "  valid: {seed: *seed, seq_len: 8, epochs: 1, datasets: *list}\n");

	(void)state;
	assert_int_equal(c->streams, 2);
	assert_int_equal(c->stream[1].seed, 5);
	assert_string_equal(c->stream[1].dataset[0].path, "w");
	assert_ptr_not_equal(c->stream[0].dataset[0].path, c->stream[1].dataset[0].path);
	config_free(c);
}

static void test_schedule_is_read_before_its_datasets(void **state)
{
	struct config *c =
		load_good("streams:\n"
			  "  train:\n"
			  "    seed: 1\n"
			  "    schedule:\n" /* before the datasets that it names */
			  "      - {from: 0, to: 4096, steps: 4, weights: {code: 3, web: 1}}\n"
			  "      - {from: 4096, to: 8192, steps: 1, weights: {web: 1e-3}}\n"
			  "      - at: 9216\n"
			  "        weights: {b/ü: 2, web: 0}\n"
			  "      - {at: 18446744073709550592, weights: {web: 1}}\n"
			  "    seq_len: 8\n"
			  "    datasets:\n"
			  "      - {name: web, path: w, max_epochs: 18446744073709551615}\n"
			  "      - name: code\n"
			  "        path: c\n"
			  "        max_epochs: 1\n"
			  "      - {name: b/ü, path: b, weight: 0}\n"
			  "  finite: {seed: 1, seq_len: 8, samples: 10,\n"
			  "    datasets: [{name: web, path: w, max_epochs: 2}]}\n");
	const struct config_stream *s = &c->stream[0];
	static const struct {
		uint64_t from, to;
		uint32_t steps;
		double weights[3];
	} expected[] = {
		{0, 4096, 4, {1, 3, 0}},
		{4096, 8192, 1, {1e-3, 0, 0}},
		{9216, 9216, 1, {0, 0, 2}},
		{UINT64_MAX - 1023, UINT64_MAX - 1023, 1, {1, 0, 0}},
	};

	(void)state;
	assert_int_equal(s->steps, 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_true(s->step[i].from == expected[i].from && s->step[i].to == expected[i].to);
		assert_int_equal(s->step[i].steps, expected[i].steps);
		for (int d = 0; d < 3; d++)
			assert_true(s->step[i].weights[d] == expected[i].weights[d]);
	}
	assert_true(s->dataset[0].max_epochs == UINT64_MAX);
	assert_int_equal(s->dataset[1].max_epochs, 1);
	assert_int_equal(s->dataset[2].max_epochs, 0);
	assert_int_equal(c->stream[1].steps, 0);
	assert_int_equal(c->stream[1].dataset[0].max_epochs, 2);
	config_free(c);
}

static int set_up(void **state)
{
	(void)state;
	snprintf(directory, sizeof(directory), "%s/tokend-config-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	if (!mkdtemp(directory))
		return -1;
	snprintf(file, sizeof(file), "%s/t.yaml", directory);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(file);
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys_not_given_have_their_defaults),
		cmocka_unit_test(test_every_key_is_read),
		cmocka_unit_test(test_digest_is_of_the_bytes),
		cmocka_unit_test(test_users_have_names_and_groups),
		cmocka_unit_test(test_sizes_with_units),
		cmocka_unit_test(test_aliases_are_resolved),
		cmocka_unit_test(test_schedule_is_read_before_its_datasets),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
