/* Streams: opening one of several, a cursor's datasets, and the config's schedule. */
#include "tests/unit/datasets.h"

static void test_one_stream(void **state)
{
	static const char text[] =
		"streams:\n"
		"  a: {seed: 1, seq_len: 8, datasets: [{name: x, path: a.bin}]}\n"
		"  b: {seed: 1, seq_len: 8, datasets: [{name: x, path: nowhere}]}\n";
	struct place *p = *state;
	char expected[256];

	make(p, "a.bin", 40);
	write_file(p, "t.yaml", text, sizeof(text) - 1);
	p->config = load_config(p);
	assert_null(catalog_open(p->config, NULL, &p->fault));
	p->catalog = catalog_open_stream(p->config, NULL, "a", &p->fault);
	assert_non_null(p->catalog);
	assert_non_null(catalog_stream(p->catalog, "a"));
	assert_null(catalog_stream(p->catalog, "b"));
	assert_null(catalog_open_stream(p->config, NULL, "c", &p->fault));
	snprintf(expected, sizeof(expected),
		"%s/t.yaml:2: streams: no stream is called c; must be one of: a, b", p->directory);
	assert_string_equal(p->fault.text, expected);
}

/* A cursor's datasets have their own order, and may include one that the config no longer has. */
static void test_map(void **state)
{
	struct place *p = *state;
	struct cursor_source sources[] = {
		{.name = "b", .weight = 1, .windows = 2, .block = 1, .group = 1},
		{.name = "gone", .weight = 0, .windows = 2, .block = 1, .group = 1},
		{.name = "a", .weight = 1, .windows = 2, .block = 1, .group = 1},
	};
	const struct dataset *map[3];
	struct cursor cursor;
	struct fault why;

	make(p, "a.bin", 2 * 17);
	const struct stream *s = open_good(
		p, LEN8, "      - {name: a, path: a.bin}\n      - {name: b, path: a.bin}");

	assert_true(cursor_begin(&cursor, &s->begin, sources, 3, NULL, 0, &why));
	stream_map(s, &cursor, map);
	assert_ptr_equal(map[0], &s->dataset[1]);
	assert_null(map[1]);
	assert_ptr_equal(map[2], &s->dataset[0]);
	cursor_free(&cursor);
}

/* ---- planned mixes ---- */

#define TWO                                                                                        \
	"      - {name: a, path: a.bin}\n" /* line 6 */                                            \
	"      - {name: b, path: b.bin, weight: 0, max_epochs: 2}\n"

static void make_two(const struct place *p)
{
	make(p, "a.bin", 2 * (8 * 10000 + 1));
	make(p, "b.bin", 2 * (8 * 5000 + 1));
}

static void assert_mix(const struct cursor *c, uint32_t i, uint64_t start, double first)
{
	assert_true(i < c->segments);
	assert_int_equal(c->segment[i]->start, start);
	assert_int_equal(c->segment[i]->units[0], (uint64_t)(first * (double)ORDER_UNITS));
}

static void test_schedule(void **state)
{
	struct place *p = *state;

	make_two(p);
	const struct stream *s = open_good(p, LEN8,
		TWO "    schedule:\n"
		    "      - {at: 1024, weights: {b: 1, a: 3}}\n"
		    "      - {from: 2048, to: 6144, steps: 2, weights: {b: 3, a: 1}}");
	const struct cursor *c = &s->begin;
	uint64_t position, unserved;

	assert_int_equal(c->dataset[0].max_epochs, 0);
	assert_int_equal(c->dataset[1].max_epochs, 2);
	assert_int_equal(c->segments, 5);
	assert_mix(c, 0, 0, 1);
	assert_mix(c, 1, 1024, 0.75);
	assert_mix(c, 2, 4096, 0.5);
	assert_mix(c, 3, 6144, 0.25);
	/* b: 768 by 4096, 1792 by 6144; of its 10000 are left 8208, or 10.69 blocks of 768. */
	assert_mix(c, 4, 6144 + 10 * 1024, 1);
	assert_true(cursor_unserved(c, 1, &position, &unserved));
	assert_int_equal(position, 16384);
	assert_int_equal(unserved, 8208 - 7680);
}

/* Faults that only the cursor finds: each names the line of the config that caused it. */
static void test_schedule_faults(void **state)
{
	struct place *p = *state;

	make_two(p);
	make(p, "tiny.bin", 2);
	assert_refused(p, LEN8,
		"      - {name: a,\n         path: tiny.bin, weight: 0}\n"
		"      - {name: b, path: b.bin}\n"
		"    schedule:\n      - {at: 1024, weights: {a: 1}}",
		"7: streams.train.datasets[0].path: no shard is as long as a window: the largest, "
		"tiny.bin, has 1 tokens, and a window has 9 (seq_len 8 + extra 1); use longer "
		"shards, a smaller seq_len or weight 0");
	assert_refused(p, LEN8,
		"      - {name: a, path: a.bin, max_epochs: 1}\n"
		"      - name: b\n        path: b.bin\n        max_epochs: 2",
		"6: streams.train: max_epochs: no dataset is left from position 19456 on; remove "
		"max_epochs of a dataset with a weight, or use epochs: for a stream that ends");
	assert_refused(p, LEN8,
		TWO "    schedule:\n"
		    "      - {from: 1024, to: 102401024, steps: 19000, weights: {b: 1, a: 1}}",
		"8: streams.train: schedule: a cursor of 98304 bytes has no room for 19001 pending "
		"mixes of 2 datasets; use fewer steps");
}

/* The schedule finds a cursor's datasets by name. */
static void test_schedule_of_cursor(void **state)
{
	struct place *p = *state;
	struct cursor_source sources[4];
	struct cursor cursor;
	struct fault fault;

	make_two(p);
	make(p, "late.bin", 2 * (8 * 5000 + 1));
	const struct stream *s = open_good(p, LEN8,
		TWO "      - {name: late, path: late.bin, weight: 0}\n"
		    "    schedule:\n"
		    "      - {from: 1024, to: 5120, steps: 4, weights: {a: 1, b: 1}}\n"
		    "      - {at: 102400, weights: {a: 3, b: 1}}");

	/* The cursor has them in reverse order, and one that the config no longer has. */
	sources[0] = (struct cursor_source){
		.name = "gone", .windows = 9, .block = 1, .group = 1, .max_epochs = 7};
	dataset_source(&s->dataset[1], &sources[1]);
	dataset_source(&s->dataset[0], &sources[2]);
	sources[1].max_epochs = 5;
	assert_true(cursor_begin(&cursor, &s->begin, sources, 3, NULL, 0, &fault));
	assert_true(stream_schedule(s, &cursor, &fault));
	assert_int_equal(cursor.dataset[0].max_epochs, 7);
	assert_int_equal(cursor.dataset[1].max_epochs, 2);
	assert_int_equal(cursor.dataset[2].max_epochs, 0);
	/* The ramp starts from the current mix: a alone. */
	assert_int_equal(cursor.segment[1]->start, 2048);
	assert_int_equal(cursor.segment[1]->units[1], ORDER_UNITS / 8);
	assert_int_equal(cursor.segment[1]->units[2], ORDER_UNITS / 8 * 7);
	assert_int_equal(cursor.segment[2]->units[1], ORDER_UNITS / 4);
	cursor_free(&cursor);

	/* In the middle of the ramp, under another mix: the ramp is the config's. */
	double other[] = {0, 0.75, 0.25};

	assert_true(cursor_begin(&cursor, &s->begin, sources, 3, NULL, 0, &fault));
	assert_true(cursor_mix(&cursor, 1024, other, &fault));
	assert_true(cursor_seek(&cursor, 2500, &fault));
	assert_true(stream_schedule(s, &cursor, &fault));
	assert_int_equal(cursor.segment[0]->start, 1024);
	assert_int_equal(cursor.segment[1]->start, 3072);
	assert_int_equal(cursor.segment[1]->units[1], ORDER_UNITS / 4);
	cursor_free(&cursor);
}

static void test_schedule_of_cursor_faults(void **state)
{
	struct place *p = *state;
	struct cursor_source source;
	struct cursor cursor;
	struct fault fault;
	char expected[1024];

	make_two(p);
	const struct stream *s = open_good(p, LEN8,
		TWO "    schedule:\n"
		    "      - {from: 0, to: 2048, steps: 2, weights: {a: 1}}\n"
		    "      - {at: 4096, weights: {b: 1, a: 1}}");

	dataset_source(&s->dataset[0], &source);
	assert_true(cursor_begin(&cursor, &s->begin, &source, 1, NULL, 0, &fault));
	assert_false(stream_schedule(s, &cursor, &fault));
	snprintf(expected, sizeof(expected),
		"%s/t.yaml:7: streams.train: dataset b: weight: the schedule gives it weight, but "
		"the cursor does not have it yet; add it first (tokctl cursor add)",
		p->directory);
	assert_string_equal(fault.text, expected);
	assert_int_equal(cursor.segments, 1);
	cursor_free(&cursor);

	/* The cursor of a stream that ends before a step: its entry is named, though the ramp has
	 * begun. */
	struct cursor identity = s->begin;
	struct cursor_source both[2];

	dataset_source(&s->dataset[0], &both[0]);
	dataset_source(&s->dataset[1], &both[1]);
	identity.samples = 3000;
	assert_true(cursor_begin(&cursor, &identity, both, 2, NULL, 0, &fault));
	assert_false(stream_schedule(s, &cursor, &fault));
	snprintf(expected, sizeof(expected),
		"%s/t.yaml:10: streams.train: schedule[1]: at: 4096 is not before", p->directory);
	assert_memory_equal(fault.text, expected, strlen(expected));
	cursor_free(&cursor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_stream, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_map, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_faults, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_of_cursor, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_of_cursor_faults, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
