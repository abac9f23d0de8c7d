/*
 * The config: what is read, and the exact line that each fault gets.
 */
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

struct place {
	char directory[64];
	char file[96];
};

static int set_up(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	strcpy(p->directory, "/tmp/tokend-config-XXXXXX");
	assert_non_null(mkdtemp(p->directory));
	snprintf(p->file, sizeof(p->file), "%s/t.yaml", p->directory);
	*state = p;
	return 0;
}

static int tear_down(void **state)
{
	struct place *p = *state;

	unlink(p->file);
	assert_int_equal(rmdir(p->directory), 0);
	free(p);
	return 0;
}

static void write_bytes(const struct place *p, const char *text, size_t n)
{
	FILE *file = fopen(p->file, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static struct config *load(const struct place *p, const char *text, struct fault *fault)
{
	write_bytes(p, text, strlen(text));
	return config_load(p->file, fault);
}

static struct config *load_good(const struct place *p, const char *text)
{
	struct fault fault;
	struct config *config = load(p, text, &fault);

	if (!config)
		fail_msg("%s", fault.text);
	return config;
}

/* ---- what is read ---- */

static void test_defaults(void **state)
{
	struct config *c = load_good(*state, "streams:\n"
					     "  train:\n"
					     "    seed: 7\n"
					     "    seq_len: 128\n"
					     "    datasets:\n"
					     "      - {name: web, path: a/b}\n");
	const struct place *p = *state;
	const struct config_stream *s = config_stream(c, "train");

	assert_string_equal(c->path, p->file);
	assert_string_equal(c->directory, p->directory);
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
	assert_int_equal(s->line, 2);
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
	assert_int_equal(d->line, 6);
	assert_int_equal(d->path_line, 6);
	assert_int_equal(d->weight_line, 6);
	config_free(c);
}

static void test_everything(void **state)
{
	struct config *c =
		load_good(*state, "socket: run/t.sock\n"
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
				  "      - {name: zero, path: z, weight: 0, shuffle: none}\n");
	const struct place *p = *state;
	const struct config_stream *s = &c->stream[0];
	char expected[128];

	snprintf(expected, sizeof(expected), "%s/run/t.sock", p->directory);
	assert_string_equal(c->socket, expected);
	snprintf(expected, sizeof(expected), "%s/state", p->directory);
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
	assert_int_equal(s->dataset[0].line, 21);
	assert_int_equal(s->dataset[0].path_line, 22);
	assert_int_equal(s->dataset[0].format_line, 23);
	assert_int_equal(s->dataset[0].weight_line, 25);
	assert_true(s->dataset[1].weight == 0 && s->dataset[1].has_weight);
	assert_int_equal(s->dataset[1].shuffle, ORDER_NONE);
	config_free(c);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} sizes[] = {{"1", 1}, {"1048576", 1 << 20}, {"3KiB", 3072}, {"512MiB", 512 << 20},
		{"2GiB", UINT64_C(2) << 30}, {"1TiB", UINT64_C(1) << 40}};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		char text[256];

		snprintf(text, sizeof(text),
			"memory: %s\nstreams: {t: {seed: 0, seq_len: 1, datasets: [{name: a, path: "
			"b}]}}\n",
			sizes[i].text);
		struct config *c = load_good(*state, text);

		assert_int_equal(c->memory_bytes, sizes[i].bytes);
		config_free(c);
	}
}

static void test_aliases(void **state)
{
	struct config *c = load_good(*state,
		"streams:\n"
		"  train:\n"
		"    seed: &seed 5\n"
		"    seq_len: 8\n"
		"    datasets: &list [{name: web, path: w}]\n"
		"  valid: {seed: *seed, seq_len: 8, epochs: 1, datasets: *list}\n");

	assert_int_equal(c->streams, 2);
	assert_int_equal(c->stream[1].seed, 5);
	assert_string_equal(c->stream[1].dataset[0].path, "w");
	assert_ptr_not_equal(c->stream[0].dataset[0].path, c->stream[1].dataset[0].path);
	config_free(c);
}

static void test_schedule(void **state)
{
	struct config *c = load_good(*state,
		"streams:\n"
		"  train:\n"
		"    seed: 1\n"
		"    schedule:\n" /* before the datasets it speaks of */
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
		int line;
	} expected[] = {
		{0, 4096, 4, {1, 3, 0}, 5},
		{4096, 8192, 1, {1e-3, 0, 0}, 6},
		{9216, 9216, 1, {0, 0, 2}, 7},
		{UINT64_MAX - 1023, UINT64_MAX - 1023, 1, {1, 0, 0}, 9},
	};

	assert_int_equal(s->schedule_line, 4);
	assert_int_equal(s->steps, 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_true(s->step[i].from == expected[i].from && s->step[i].to == expected[i].to);
		assert_int_equal(s->step[i].steps, expected[i].steps);
		assert_int_equal(s->step[i].line, expected[i].line);
		for (int d = 0; d < 3; d++)
			assert_true(s->step[i].weights[d] == expected[i].weights[d]);
	}
	assert_true(s->dataset[0].max_epochs == UINT64_MAX);
	assert_int_equal(s->dataset[0].max_epochs_line, 12);
	assert_int_equal(s->dataset[1].max_epochs, 1);
	assert_int_equal(s->dataset[1].max_epochs_line, 15);
	assert_int_equal(s->dataset[2].max_epochs, 0);
	assert_int_equal(s->dataset[2].max_epochs_line, 16);
	assert_int_equal(c->stream[1].steps, 0);
	assert_int_equal(c->stream[1].dataset[0].max_epochs, 2);
	config_free(c);
}

/* The largest window there may be. */
static void test_window_bound(void **state)
{
	struct config *c = load_good(*state,
		"streams: {t: {seed: 0, seq_len: 1073741823, datasets: [{name: a, path: b}]}}\n");

	assert_int_equal(c->stream[0].seq_len + c->stream[0].extra, 1 << 30);
	config_free(c);
}

static void test_example(void **state)
{
	char path[512];
	struct fault fault;
	const char *slash = strrchr(__FILE__, '/');
	struct config *c;

	(void)state;
	snprintf(path, sizeof(path), "%.*s/../../config/tokend.yaml",
		slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".");
	c = config_load(path, &fault);
	if (!c)
		fail_msg("%s", fault.text);
	assert_int_equal(c->streams, 2);
	assert_int_equal(c->stream[0].datasets, 2);
	assert_true(c->stream[0].dataset[1].slide);
	assert_int_equal(c->stream[1].epochs, 1);
	config_free(c);
}

/* ---- what is refused ---- */

struct bad {
	const char *text;
	const char *why; /* behind the file's name */
};

#define HEAD "streams:\n  train:\n    seed: 1\n    seq_len: 8\n    datasets:\n" /* lines 1 to 5 */
#define WEB  HEAD "      - {name: web, path: web" /* line 6, to be closed */
#define GOOD WEB "}\n"

static const struct bad bad_files[] = {
	{"", ":1: config: the file is empty; must have at least streams: (see config/tokend.yaml)"},
	{"# nothing\n", ":1: config: the file is empty; must have at least streams: (see "
			"config/tokend.yaml)"},
	{"- a\n", ":1: config: is a list; must be a mapping of keys to values"},
	{"a\n", ":1: config: 'a' is a single value; must be a mapping of keys to values"},
	{"memory: 1GiB\n",
		":1: streams: is missing; add streams: a mapping of stream names to streams"},
	{"streams:\n", ":1: streams: is empty; must be a mapping of stream names to streams"},
	{"streams: [a]\n", ":1: streams: is a list; must be a mapping of stream names to streams"},
	{"streams: {}\n", ":1: streams: has 0 streams; must have 1 to 1024"},
	{GOOD "socket: a: b\n", ":7: YAML: mapping values are not allowed in this context (column "
				"10); must be valid YAML"},
	{GOOD "\tio: auto\n", ":7: YAML: found character that cannot start any token (column 1); "
			      "must be valid YAML"},
	{WEB "\n", ":7: YAML: did not find expected ',' or '}' (column 1); must be valid YAML"},
	{GOOD "...\nio: auto\n",
		":8: YAML: did not find expected <document start> (column 1); must be valid YAML"},
	{GOOD "---\nio: auto\n", ":7: config: a second YAML document begins here; must be one"},
	{"io: \xff\n",
		":1: YAML: invalid leading UTF-8 octet at byte 4; must be a file of UTF-8 text"},
	/* keys */
	{GOOD "sockt: x\n", ":7: sockt: unknown key; did you mean socket?"},
	{GOOD "colour: x\n",
		":7: colour: unknown key; known here: socket, state_dir, memory, metrics, io, "
		"direct, allow_uids, admin_uids, "
		"streams"},
	{GOOD "    seqlen: 3\n", ":7: streams.train.seqlen: unknown key; did you mean seq_len?"},
	{WEB ", wieght: 1}\n",
		":6: streams.train.datasets[0].wieght: unknown key; did you mean weight?"},
	{GOOD "    seed: 3\n",
		":7: streams.train.seed: is given twice; the first is on line 3, remove one"},
	{GOOD "  train: {}\n",
		":7: streams.train: is given twice; the first is on line 2, remove one"},
	{GOOD "? [a]\n: b\n", ":7: config: is a list; must be a key"},
	{WEB ", \"a\\nb\": 1}\n",
		":6: streams.train.datasets[0].a?b: unknown key; known here: name, path, manifest, "
		"format, dtype, weight, max_epochs, shuffle, block, "
		"group, slide, column, label_mask"},
	{"streams: {t: {seq_len: 8, datasets: [{name: a, path: b}]}}\n",
		":1: streams.t.seed: is missing; add seed: a whole number from 0 to "
		"18446744073709551615 in "
		"plain digits"},
	{"streams:\n  t:\n    seed: 1\n    datasets: [{name: a, path: b}]\n",
		":2: streams.t.seq_len: is missing; add seq_len: a number of tokens from 1 to "
		"1073741824 in "
		"plain digits"},
	{"streams: {t: {seed: 1, seq_len: 8}}\n",
		":1: streams.t.datasets: is missing; add datasets: a list "
		"of datasets, each {name: …, path: …}"},
	/* numbers */
	{"streams: {t: {seed: 1,\n  seq_len: 0}}\n",
		":2: streams.t.seq_len: '0' is too small; must be a "
		"number of tokens from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: -1}}\n", ":1: streams.t.seq_len: '-1' is no whole number; must be "
					  "a number of tokens from 1 to "
					  "1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1073741825}}\n",
		":1: streams.t.seq_len: '1073741825' is too large; must be a number of tokens "
		"from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 010}}\n", ":1: streams.t.seq_len: '010' has a leading zero, which "
					   "some read as octal; must be a "
					   "number of tokens from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 0x10}}\n", ":1: streams.t.seq_len: '0x10' is no whole number; "
					    "must be a number of tokens from 1 "
					    "to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1e3}}\n", ":1: streams.t.seq_len: '1e3' is no whole number; must "
					   "be a number of tokens from 1 to "
					   "1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1_000}}\n", ":1: streams.t.seq_len: '1_000' is no whole number; "
					     "must be a number of tokens from "
					     "1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: \"8\"}}\n", ":1: streams.t.seq_len: \"8\" in quotes is a text; "
					     "must be a number of tokens from 1 "
					     "to 1073741824 in plain digits, without quotes"},
	{"streams: {t: {seq_len: [8]}}\n", ":1: streams.t.seq_len: is a list; must be a number of "
					   "tokens from 1 to 1073741824 in "
					   "plain digits"},
	{"streams: {t: {seed: }}\n",
		":1: streams.t.seed: is empty; must be a whole number from 0 to "
		"18446744073709551615 in plain digits"},
	{"streams: {t: {seed: !!int 3}}\n", ":1: streams.t.seed: has the tag "
					    "tag:yaml.org,2002:int; write the value without one"},
	{"streams: {t: {seed: 18446744073709551616}}\n",
		":1: streams.t.seed: '18446744073709551616' is too large; must be a whole "
		"number from 0 to 18446744073709551615 in plain digits"},
	{GOOD "    stride: 0\n",
		":7: streams.train.stride: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    extra: 1073741817\n",
		":7: streams.train.extra: seq_len 8 + extra 1073741817 is over "
		"1073741824 tokens; must be at most that"},
	{"streams:\n  t: {seed: 0, seq_len: 1073741824, datasets: [{name: a, path: b}]}\n",
		":2: streams.t.seq_len: seq_len 1073741824 + extra 1 is over 1073741824 tokens; "
		"must be at "
		"most that"},
	{GOOD "    epochs: 0\n",
		":7: streams.train.epochs: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    samples: 0\n",
		":7: streams.train.samples: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    eos: 70\n    vocab: 70\n",
		":7: streams.train.eos: 70 is no token of a vocab of 70; must be below it"},
	{GOOD "    eos: 7\n    documents: 1\n",
		":8: streams.train.documents: '1' is no truth value; must be true or false"},
	{GOOD "    loss_mask: yes please\n", ":7: streams.train.loss_mask: 'yes please' is no "
					     "truth value; must be true or false"},
	{WEB ", label_mask: masks}\n", ":6: streams.train.datasets[0].label_mask: the stream asks "
				       "for no loss mask; must have "
				       "loss_mask: true, or be left out"},
	{WEB ", label_mask: [a]}\n    loss_mask: true\n",
		":6: streams.train.datasets[0].label_mask: is a "
		"list; must be a directory of loss masks under "
		"the names of the shards"},
	/* epochs with what it excludes */
	{GOOD "    epochs: 1\n    samples: 4\n", ":8: streams.train.samples: the stream has epochs "
						 "too (line 7); must have one of them"},
	{WEB ", weight: 1}\n    epochs: 1\n",
		":6: streams.train.datasets[0].weight: a stream with epochs (line 7) serves every "
		"window so often; must be left out"},
/* weights */
#define WEIGHT(text, fault)                                                                        \
	{                                                                                          \
		WEB ", weight: " text "}\n",                                                       \
			":6: streams.train.datasets[0].weight: '" text "' " fault                  \
			"; must be a finite number, 0 or more, such as 0.7"                        \
	}
	WEIGHT(".nan", "is no finite number"),
	WEIGHT("nan", "is no finite number"),
	WEIGHT(".inf", "is no finite number"),
	WEIGHT("1e400", "is too large"),
	WEIGHT("1e-400", "is too small to be told from 0"),
	WEIGHT("-1", "is negative"),
	WEIGHT("0x1p3", "is no finite number"),
	WEIGHT("1e", "is no finite number"),
	WEIGHT("half", "is no finite number"),
	{WEB ", weight: 0}\n",
		":5: streams.train.datasets: the weights do not sum to a finite number above "
		"0; must have at least "
		"one weight above 0"},
	{WEB ", weight: 1e308}\n      - {name: b, path: b, weight: 1e308}\n",
		":5: streams.train.datasets: the weights do not sum to a finite number above 0; "
		"must have at "
		"least one weight "
		"above 0"},
	{GOOD "      - {name: b, path: b, weight: 1e-12}\n",
		":7: streams.train.datasets[1].weight: 1e-12 is below 1/2^32 of the "
		"sum, so never served; must be larger, or 0"},
	/* datasets */
	{"streams: {t: {seed: 0, seq_len: 1, datasets: []}}\n",
		":1: streams.t.datasets: has 0 datasets; must have 1 to 1024"},
	{"streams: {t: {seed: 0, seq_len: 1, datasets: {a: b}}}\n",
		":1: streams.t.datasets: is a mapping; must be a list of datasets, each {name: …, "
		"path: …}"},
	{HEAD "      - web\n",
		":6: streams.train.datasets[0]: 'web' is a single value; must be a mapping of "
		"keys to values"},
	{HEAD "      - {path: web}\n", ":6: streams.train.datasets[0].name: is missing; add name: "
				       "a name of 1 to 64 bytes, no "
				       "control characters"},
	{HEAD "      - {name: web}\n", ":6: streams.train.datasets[0].path: is missing; add path: "
				       "a file, a directory or a glob"},
	{GOOD "      - {path: b, name: web}\n",
		":7: streams.train.datasets[1].name: 'web' is taken by the "
		"dataset on line 6; must be another name"},
	{HEAD "      - {name: '', path: web}\n",
		":6: streams.train.datasets[0].name: is empty; must be a "
		"name of 1 to 64 bytes, no control characters"},
	{HEAD "      - {name: \"a\\tb\", path: web}\n",
		":6: streams.train.datasets[0].name: 'a?b' is no name; must be a name of "
		"1 to 64 bytes, no control characters"},
	{HEAD "      - {name: \"a\\0b\", path: web}\n",
		":6: streams.train.datasets[0].name: has a zero byte in it; must be a "
		"name of 1 to 64 bytes, no control characters"},
	{HEAD "      - {path: web, name: "
	      "0123456789012345678901234567890123456789012345678901234567890123x}\n",
		":6: streams.train.datasets[0].name: "
		"'01234567890123456789012345678901234567890123456789012345…' is no name; must "
		"be a name of 1 to 64 bytes, no control characters"},
	{HEAD "      - {name: web, path: ~}\n", ":6: streams.train.datasets[0].path: is null; must "
						"be a file, a directory or a glob"},
	{WEB ", manifest: ~}\n",
		":6: streams.train.datasets[0].manifest: is null; must be a file that `tokctl "
		"inspect --manifest` wrote"},
	{WEB ", dtype: u8}\n", ":6: streams.train.datasets[0].dtype: 'u8' is none of u16 or u32; "
			       "did you mean u16?"},
	{WEB ", dtype: float}\n",
		":6: streams.train.datasets[0].dtype: 'float' is unknown; must be u16 or u32"},
	{WEB ", shuffle: globl}\n",
		":6: streams.train.datasets[0].shuffle: 'globl' is none of global, block "
		"or none; did you mean global?"},
	{WEB ", block: 0}\n",
		":6: streams.train.datasets[0].block: '0' is too small; must be a whole number "
		"from 1 to 2147483648 "
		"in plain digits"},
	{WEB ", group: 2147483649}\n", ":6: streams.train.datasets[0].group: '2147483649' is too "
				       "large; must be a whole number "
				       "from 1 to 2147483648 in plain digits"},
	{WEB ", slide: yes}\n", ":6: streams.train.datasets[0].slide: 'yes' is no truth value; "
				"must be true or false"},
	/* max_epochs */
	{WEB ", max_epochs: 0}\n", ":6: streams.train.datasets[0].max_epochs: '0' is too small; "
				   "must be a whole number from 1 "
				   "to 18446744073709551615 in plain digits"},
	{WEB ", max_epochs: 1.5}\n", ":6: streams.train.datasets[0].max_epochs: '1.5' is no whole "
				     "number; must be a whole number "
				     "from 1 to 18446744073709551615 in plain digits"},
	{WEB ",\n         max_epochs: 2}\n    epochs: 1\n",
		":7: streams.train.datasets[0].max_epochs: a stream with epochs (line 8) serves "
		"every window "
		"so often; must be left out"},
/* schedule: its first entry is on line 9 */
#define TWO	   GOOD "      - {name: code, path: c}\n    schedule:\n"
#define STEP(text) TWO "      - {" text "}\n"
#define AT(text)   STEP("at: 1024, weights: {" text "}")
#define WHERE	   "streams.train.schedule[0]"
	{GOOD "    schedule: 3\n",
		":7: streams.train.schedule: '3' is a single value; must be a list of "
		"{at: POSITION, weights: "
		"{…}} or {from: POSITION, to: POSITION, steps: N, weights: {…}}"},
	{GOOD "    schedule: {}\n", ":7: streams.train.schedule: is a mapping; must be a list of "
				    "{at: POSITION, weights: {…}} or "
				    "{from: POSITION, to: POSITION, steps: N, weights: {…}}"},
	{TWO "      - 1024\n",
		":9: " WHERE ": '1024' is a single value; must be a mapping of keys to values"},
	{GOOD "    epochs: 1\n    schedule: []\n", ":8: streams.train.schedule: the stream ends "
						   "(epochs, line 7), and its mix stays as it is; "
						   "must be left out"},
	{GOOD "    schedule: []\n    samples: 9\n",
		":7: streams.train.schedule: the stream ends (samples, line 8), and its mix stays "
		"as it is; "
		"must be left out"},
	{STEP("at: 1024, weigths: {web: 1}"),
		":9: " WHERE ".weigths: unknown key; did you mean weights?"},
	{STEP("at: 1024"),
		":9: " WHERE ".weights: is missing; add weights: a mapping of dataset names to "
		"weights, such as {web: 0.7, code: 0.3}"},
	{STEP("at: 1024, weights: 1"),
		":9: " WHERE ".weights: '1' is a single value; must be a mapping of "
		"dataset names to weights, such as {web: 0.7, code: 0.3}"},
	{STEP("at: 1024, weights: [1]"),
		":9: " WHERE ".weights: is a list; must be a mapping of dataset names "
		"to weights, such as {web: 0.7, code: 0.3}"},
	/* which keys go together */
	{STEP("weights: {web: 1}"),
		":9: " WHERE ": has no from; must have at, or from, to and steps"},
	{STEP("from: 0, steps: 1, weights: {web: 1}"),
		":9: " WHERE ": has no to; must have at, or from, to and steps"},
	{STEP("from: 0, to: 1024, weights: {web: 1}"),
		":9: " WHERE ": has no steps; must have at, or from, to and steps"},
	{STEP("at: 1024,\n         from: 0, weights: {web: 1}"),
		":10: " WHERE
		": has at (line 9) and from; must have at alone, or from, to and steps"},
	{STEP("at: 1024, to: 2048, weights: {web: 1}"),
		":9: " WHERE ": has at (line 9) and to; must have at alone, or from, to and steps"},
	{STEP("at: 1024, steps: 1, weights: {web: 1}"),
		":9: " WHERE
		": has at (line 9) and steps; must have at alone, or from, to and steps"},
	/* positions */
	{STEP("at: 0, weights: {web: 1}"),
		":9: " WHERE ".at: 0 is where the run begins; must be ahead: what "
		"it begins with are the datasets' weights"},
	{STEP("at: -1024, weights: {web: 1}"),
		":9: " WHERE
		".at: '-1024' is no whole number; must be a position, a multiple of 1024"},
	{STEP("at: 1e6, weights: {web: 1}"),
		":9: " WHERE
		".at: '1e6' is no whole number; must be a position, a multiple of 1024"},
	{STEP("at: 18446744073709551616, weights: {web: 1}"),
		":9: " WHERE
		".at: '18446744073709551616' is too large; must be a position, a multiple of "
		"1024"},
	{STEP("at: 1000, weights: {web: 1}"),
		":9: " WHERE ".at: 1000 is not a multiple of 1024; take 1024"},
	{STEP("at: 5000, weights: {web: 1}"),
		":9: " WHERE ".at: 5000 is not a multiple of 1024; take 4096 or 5120"},
	{STEP("at: 18446744073709551615, weights: {web: 1}"),
		":9: " WHERE
		".at: 18446744073709551615 is not a multiple of 1024; take 18446744073709550592"},
	{STEP("from: 1025, to: 4096, steps: 1, weights: {web: 1}"),
		":9: " WHERE ".from: 1025 is not a multiple of 1024; take 1024 or 2048"},
	{STEP("from: 1024,\n         to: 4095, steps: 1, weights: {web: 1}"),
		":10: " WHERE ".to: 4095 is not a multiple of 1024; take 3072 or 4096"},
	{STEP("from: 4096, to: 4096, steps: 1, weights: {web: 1}"),
		":9: " WHERE ".to: 4096 is not behind from, 4096; must be a later position"},
	{STEP("from: 4096, to: 1024, steps: 1, weights: {web: 1}"),
		":9: " WHERE ".to: 1024 is not behind from, 4096; must be a later position"},
	{STEP("from: 1024, to: 4096, steps: 0, weights: {web: 1}"),
		":9: " WHERE
		".steps: '0' is too small; must be a whole number from 1 to 4294967295 in plain "
		"digits"},
	{STEP("from: 1024, to: 4096, steps: 4, weights: {web: 1}"),
		":9: " WHERE
		".steps: 4 is more than there are blocks of 1024 between from and to; must be 1 "
		"to 3"},
	{AT("web: 1") "      - {at: 1024, weights: {web: 1}}\n",
		":10: streams.train.schedule[1].at: 1024 is not behind the entry before it (line "
		"9), which "
		"ends at 1024; must be in ascending order"},
	{STEP("from: 1024, to: 4096, steps: 2, weights: {web: 1}") "      - {at: 3072, weights: "
								   "{web: 1}}\n",
		":10: streams.train.schedule[1].at: 3072 is not behind the entry before it (line "
		"9), which "
		"ends at 4096; must be in ascending order"},
	{STEP("from: 1024, to: 4096, steps: 2, weights: {web: 1}") "      - {from: 3072, to: 8192, "
								   "steps: 1, "
								   "weights: {web: 1}}\n",
		":10: streams.train.schedule[1].from: 3072 is not behind the entry before it (line "
		"9), which "
		"ends at 4096; must be in ascending order"},
	/* weights */
	{AT("wbe: 1"), ":9: " WHERE
		       ".weights.wbe: no dataset of the stream is called so; did you mean web?"},
	{AT("wikipedia: 1"),
		":9: " WHERE ".weights.wikipedia: no dataset of the stream is called so; must be "
		"one of those under datasets:, the first of which is web"},
	{AT("web: 1, code: 2, web: 3"),
		":9: " WHERE ".weights.web: is given twice; the first is on line 9, remove one"},
	{AT("[web]: 1"), ":9: " WHERE ".weights: is a list; must be a dataset's name"},
	{AT(""), ":9: " WHERE
		 ".weights: they do not sum to a finite number above 0; must have at least one "
		 "weight above 0"},
	{AT("web: 0, code: 0.0"),
		":9: " WHERE ".weights: they do not sum to a finite number above 0; must "
		"have at least one weight above 0"},
	{AT("web: 1e308, code: 1e308"),
		":9: " WHERE ".weights: they do not sum to a finite number above 0; "
		"must have at least one weight above 0"},
	{AT("web: 1,\n         code: 1e-12"),
		":10: " WHERE
		".weights.code: 1e-12 is below 1/2^32 of the sum, so never served; must be "
		"larger, or 0"},
	{AT("web: .nan"),
		":9: " WHERE ".weights.web: '.nan' is no finite number; must be a finite number, 0 "
		"or more, such as 0.7"},
	{AT("web: -1"), ":9: " WHERE
			".weights.web: '-1' is negative; must be a finite number, 0 or more, such "
			"as 0.7"},
	{AT("web: "), ":9: " WHERE
		      ".weights.web: is empty; must be a finite number, 0 or more, such as 0.7"},
	/* streams */
	{"streams:\n  a/b: {}\n", ":2: streams.a/b: 'a/b' cannot name a stream; must be a name of "
				  "1 to 64 bytes, no control "
				  "characters, no '/', no dot in front"},
	{"streams:\n  .a: {}\n", ":2: streams..a: '.a' cannot name a stream; must be a name of 1 "
				 "to 64 bytes, no control "
				 "characters, no '/', no dot in front"},
	{"streams:\n  a: &a {seed: 1, seq_len: 1, datasets: *a}\n",
		":2: streams.a.datasets: is a mapping; must be a list of datasets, each {name: …, "
		"path: …}"},
	/* the daemon's own */
	{"memory: 1GB\n",
		":1: memory: '1GB' is no size; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"memory: GiB\n", ":1: memory: 'GiB' is no whole number; must be a size such as 512MiB, "
			  "1GiB or plain bytes"},
	{"memory: 0\n",
		":1: memory: '0' is too small; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"memory: 01MiB\n",
		":1: memory: '01MiB' has a leading zero, which some read as octal; must be a "
		"size such as 512MiB, "
		"1GiB or plain bytes"},
	{"memory: 8388608TiB\n", ":1: memory: '8388608TiB' is too large; must be a size such as "
				 "512MiB, 1GiB or plain bytes"},
	{"metrics: 9464\n",
		":1: metrics: '9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: ':9464'\n",
		":1: metrics: ':9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: a:0\n",
		":1: metrics: 'a:0' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: a:65536\n",
		":1: metrics: 'a:65536' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: ::1:9464\n",
		":1: metrics: '::1:9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"io: urng\n", ":1: io: 'urng' is none of auto, uring or pread; did you mean uring?"},
	{"direct: 1\n", ":1: direct: '1' is no truth value; must be true or false"},
	{"allow_uids: 1000\n", ":1: allow_uids: '1000' is a single value; must be a list of user "
			       "numbers, such as [1000]"},
	{"allow_uids:\n  - 1\n  - -1\n",
		":3: allow_uids[1]: '-1' is no whole number; must be a whole number "
		"from 0 to 4294967294 in plain digits"},
	{"admin_uids: 7\n", ":1: admin_uids: '7' is a single value; must be a list of user "
			    "numbers, such as [1000]"},
	{"allow_uids: [4294967295]\n",
		":1: allow_uids[0]: '4294967295' is too large; must be a whole number "
		"from 0 to 4294967294 in plain digits"},
	{"state_dir:\n", ":1: state_dir: is empty; must be a directory"},
};

static void test_bad_files(void **state)
{
	const struct place *p = *state;
	int wrong = 0;

	for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
		char expected[1024];
		struct fault fault;
		struct config *c = load(p, bad_files[i].text, &fault);

		snprintf(expected, sizeof(expected), "%s%s", p->file, bad_files[i].why);
		if (c || strcmp(fault.text, expected) != 0) {
			print_error("config:\n%s\nexpected: %s\n     got: %s\n", bad_files[i].text,
				expected, c ? "(it was taken)" : fault.text);
			wrong++;
		}
		config_free(c);
	}
	assert_int_equal(wrong, 0);
}

/* A schedule may have as many entries as a cursor could hold mixes, so no config takes memory
 * without end. */
static void test_long_schedule(void **state)
{
	enum { MOST = LIMIT_CURSOR_BYTES / 5 };
	static const char head[] = GOOD "    schedule:\n";
	char *text = malloc(sizeof(head) + (size_t)(MOST + 1) * 48), expected[1024];
	struct fault fault;
	size_t n;

	assert_non_null(text);
	for (int count = MOST; count <= MOST + 1; count++) {
		n = (size_t)sprintf(text, "%s", head);
		for (int i = 1; i <= count; i++)
			n += (size_t)sprintf(
				text + n, "    - {at: %d, weights: {web: 1}}\n", 1024 * i);
		struct config *c = load(*state, text, &fault);

		assert_true((c != NULL) == (count == MOST));
		config_free(c);
	}
	free(text);
	snprintf(expected, sizeof(expected),
		"%s:7: streams.train.schedule: has %d entries; must have at most %d",
		((struct place *)*state)->file, MOST + 1, MOST);
	assert_string_equal(fault.text, expected);
}

static void test_long_socket(void **state)
{
	char text[512], expected[1024], path[128];
	struct fault fault;

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[107] = 0;
	snprintf(text, sizeof(text), GOOD "socket: %s\n", path);
	config_free(load_good(*state, text));

	path[107] = 'x';
	path[108] = 0;
	snprintf(text, sizeof(text), GOOD "socket: %s\n", path);
	assert_null(load(*state, text, &fault));
	snprintf(expected, sizeof(expected),
		"%s:7: socket: %s has 108 bytes; a socket's path must have at most 107",
		((struct place *)*state)->file, path);
	assert_string_equal(fault.text, expected);
}

static void test_no_file(void **state)
{
	const struct place *p = *state;
	char expected[1024];
	struct fault fault;

	assert_null(config_load(p->file, &fault));
	snprintf(expected, sizeof(expected),
		"%s: cannot be opened: No such file or directory; name the config file with -c",
		p->file);
	assert_string_equal(fault.text, expected);
	assert_null(config_load(p->directory, &fault));
	snprintf(expected, sizeof(expected),
		"%s: cannot be read: Is a directory; name a config file with -c", p->directory);
	assert_string_equal(fault.text, expected);
}

/* libyaml alone takes most of a minute for such a file. */
static void test_nested(void **state)
{
	enum { DEEP = 200000 };
	const char *file = ((struct place *)*state)->file;
	char *text = malloc(DEEP + 16), expected[1024];
	struct fault fault;

	assert_non_null(text);
	memcpy(text, "streams: ", 9);
	memset(text + 9, '[', DEEP);
	write_bytes(*state, text, 9 + DEEP);
	assert_null(config_load(file, &fault));
	snprintf(expected, sizeof(expected),
		"%s:1: YAML: lists and mappings are nested deeper than 32 levels; a config has 7",
		file);
	assert_string_equal(fault.text, expected);
	free(text);
}

static void test_large(void **state)
{
	const char *file = ((struct place *)*state)->file;
	char expected[1024];
	struct fault fault;

	write_bytes(*state, GOOD, sizeof(GOOD) - 1);
	assert_int_equal(truncate(file, 17 << 20), 0);
	assert_null(config_load(file, &fault));
	snprintf(expected, sizeof(expected),
		"%s:1: config: the file is larger than 16 MiB; name a config file with -c", file);
	assert_string_equal(fault.text, expected);
}

/* Any prefix of a config, and any byte of it changed, is taken or refused in one line; a sanitizer
 * watches.
 */
static void test_mangled(void **state)
{
	static const char text[] =
		"memory: 1GiB\nallow_uids: [1, 2]\nmetrics: a:1\n" WEB
		", weight: 1.5, shuffle: block, max_epochs: 2}\n    eos: 4\n    schedule:\n"
		"    - {at: 1024, weights: {web: 1}}\n"
		"    - {from: 2048, to: 4096, steps: 2, weights: {web: 2}}\n";
	char copy[sizeof(text)];
	struct fault fault;
	size_t n = sizeof(text) - 1;

	for (size_t i = 0; i < 2 * n; i++) {
		memcpy(copy, text, n);
		if (i >= n)
			copy[i - n] ^= (char)(1 + i % 0x7f);
		write_bytes(*state, copy, i < n ? i : n);
		fault.text[0] = 0;
		struct config *c = config_load(((struct place *)*state)->file, &fault);

		assert_true(c || (fault.text[0] && !strchr(fault.text, '\n')));
		config_free(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_defaults, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_everything, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_aliases, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_window_bound, set_up, tear_down),
		cmocka_unit_test(test_example),
		cmocka_unit_test_setup_teardown(test_bad_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_schedule, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_socket, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nested, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_large, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_mangled, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
