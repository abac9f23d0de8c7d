/*
 * The config: what is read, and the exact line that each fault gets.
 */
#include "../../daemon/config.h"
#include "../../proto/wire.h"

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

static struct config *load(const struct place *p, const char *text, char why[1024])
{
	write_bytes(p, text, strlen(text));
	why[0] = 0;
	return config_load(p->file, why, 1024);
}

static struct config *load_good(const struct place *p, const char *text)
{
	char why[1024];
	struct config *config = load(p, text, why);

	if (!config)
		fail_msg("%s", why);
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
	assert_false(s->has_vocab);
	assert_int_equal(s->line, 2);
	assert_int_equal(s->datasets, 1);

	const struct config_dataset *d = s->dataset;

	assert_string_equal(d->name, "web");
	assert_string_equal(d->path, "a/b");
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
	struct config *c = load_good(*state, "socket: run/t.sock\n"
					     "state_dir: state\n"
					     "memory: 64KiB\n"
					     "metrics: '[::1]:9464'\n"
					     "io: pread\n"
					     "direct: true\n"
					     "allow_uids: [0, 1000, 4294967294]\n"
					     "streams:\n"
					     "  train:\n"
					     "    seed: 18446744073709551615\n"
					     "    seq_len: 8\n"
					     "    extra: 0\n"
					     "    stride: 3\n"
					     "    eos: 0\n"
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
	assert_true(s->seed == UINT64_MAX);
	assert_int_equal(s->extra, 0);
	assert_int_equal(s->stride, 3);
	assert_true(s->has_eos && s->has_vocab);
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
	assert_int_equal(s->dataset[0].line, 18);
	assert_int_equal(s->dataset[0].path_line, 19);
	assert_int_equal(s->dataset[0].format_line, 20);
	assert_int_equal(s->dataset[0].weight_line, 22);
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
			"memory: %s\nstreams: {t: {seed: 0, seq_len: 1, datasets: [{name: a, path: b}]}}\n",
			sizes[i].text);
		struct config *c = load_good(*state, text);

		assert_int_equal(c->memory_bytes, sizes[i].bytes);
		config_free(c);
	}
}

static void test_aliases(void **state)
{
	struct config *c =
		load_good(*state, "streams:\n"
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

/* The largest window there may be. */
static void test_window_bound(void **state)
{
	struct config *c = load_good(
		*state, "streams: {t: {seed: 0, seq_len: 1073741823, datasets: [{name: a, path: b}]}}\n");

	assert_int_equal(c->stream[0].seq_len + c->stream[0].extra, 1 << 30);
	config_free(c);
}

static void test_example(void **state)
{
	char path[512], why[1024];
	const char *slash = strrchr(__FILE__, '/');
	struct config *c;

	(void)state;
	snprintf(path, sizeof(path), "%.*s/../../config/tokend.yaml", slash ? (int)(slash - __FILE__) : 1,
		slash ? __FILE__ : ".");
	c = config_load(path, why, sizeof(why));
	if (!c)
		fail_msg("%s", why);
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
#define WEB  HEAD "      - {name: web, path: web"				/* line 6, to be closed */
#define GOOD WEB "}\n"

static const struct bad bad_files[] = {
	{"", ":1: config: the file is empty; must have at least streams: (see config/tokend.yaml)"},
	{"# nothing\n",
		":1: config: the file is empty; must have at least streams: (see config/tokend.yaml)"},
	{"- a\n", ":1: config: is a list; must be a mapping of keys to values"},
	{"a\n", ":1: config: 'a' is a single value; must be a mapping of keys to values"},
	{"memory: 1GiB\n", ":1: streams: is missing; add streams: a mapping of stream names to streams"},
	{"streams:\n", ":1: streams: is empty; must be a mapping of stream names to streams"},
	{"streams: [a]\n", ":1: streams: is a list; must be a mapping of stream names to streams"},
	{"streams: {}\n", ":1: streams: has 0 streams; must have 1 to 1024"},
	{GOOD "socket: a: b\n",
		":7: YAML: mapping values are not allowed in this context (column 10); must be valid YAML"},
	{GOOD "\tio: auto\n",
		":7: YAML: found character that cannot start any token (column 1); must be valid YAML"},
	{WEB "\n", ":7: YAML: did not find expected ',' or '}' (column 1); must be valid YAML"},
	{GOOD "...\nio: auto\n",
		":8: YAML: did not find expected <document start> (column 1); must be valid YAML"},
	{GOOD "---\nio: auto\n", ":7: config: a second YAML document begins here; must be one"},
	{"io: \xff\n", ":1: YAML: invalid leading UTF-8 octet at byte 4; must be a file of UTF-8 text"},
	/* keys */
	{GOOD "sockt: x\n", ":7: sockt: unknown key; did you mean socket?"},
	{GOOD "colour: x\n", ":7: colour: unknown key; known here: socket, state_dir, memory, metrics, io, "
			     "direct, allow_uids, "
			     "streams"},
	{GOOD "    seqlen: 3\n", ":7: streams.train.seqlen: unknown key; did you mean seq_len?"},
	{WEB ", wieght: 1}\n", ":6: streams.train.datasets[0].wieght: unknown key; did you mean weight?"},
	{GOOD "    seed: 3\n", ":7: streams.train.seed: is given twice; the first is on line 3, remove one"},
	{GOOD "  train: {}\n", ":7: streams.train: is given twice; the first is on line 2, remove one"},
	{GOOD "? [a]\n: b\n", ":7: config: is a list; must be a key"},
	{WEB ", \"a\\nb\": 1}\n", ":6: streams.train.datasets[0].a?b: unknown key; known here: name, path, "
				  "format, dtype, weight, shuffle, block, "
				  "group, slide"},
	{"streams: {t: {seq_len: 8, datasets: [{name: a, path: b}]}}\n",
		":1: streams.t.seed: is missing; add seed: a whole number from 0 to 18446744073709551615 in "
		"plain digits"},
	{"streams:\n  t:\n    seed: 1\n    datasets: [{name: a, path: b}]\n",
		":2: streams.t.seq_len: is missing; add seq_len: a number of tokens from 1 to 1073741824 in "
		"plain digits"},
	{"streams: {t: {seed: 1, seq_len: 8}}\n", ":1: streams.t.datasets: is missing; add datasets: a list "
						  "of datasets, each {name: …, path: …}"},
	/* numbers */
	{"streams: {t: {seed: 1,\n  seq_len: 0}}\n", ":2: streams.t.seq_len: '0' is too small; must be a "
						     "number of tokens from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: -1}}\n",
		":1: streams.t.seq_len: '-1' is no whole number; must be a number of tokens from 1 to "
		"1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1073741825}}\n",
		":1: streams.t.seq_len: '1073741825' is too large; must be a number of tokens "
		"from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 010}}\n",
		":1: streams.t.seq_len: '010' has a leading zero, which some read as octal; must be a "
		"number of tokens from 1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 0x10}}\n",
		":1: streams.t.seq_len: '0x10' is no whole number; must be a number of tokens from 1 "
		"to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1e3}}\n",
		":1: streams.t.seq_len: '1e3' is no whole number; must be a number of tokens from 1 to "
		"1073741824 in plain digits"},
	{"streams: {t: {seq_len: 1_000}}\n",
		":1: streams.t.seq_len: '1_000' is no whole number; must be a number of tokens from "
		"1 to 1073741824 in plain digits"},
	{"streams: {t: {seq_len: \"8\"}}\n",
		":1: streams.t.seq_len: \"8\" in quotes is a text; must be a number of tokens from 1 "
		"to 1073741824 in plain digits, without quotes"},
	{"streams: {t: {seq_len: [8]}}\n",
		":1: streams.t.seq_len: is a list; must be a number of tokens from 1 to 1073741824 in "
		"plain digits"},
	{"streams: {t: {seed: }}\n", ":1: streams.t.seed: is empty; must be a whole number from 0 to "
				     "18446744073709551615 in plain digits"},
	{"streams: {t: {seed: !!int 3}}\n",
		":1: streams.t.seed: has the tag tag:yaml.org,2002:int; write the value without one"},
	{"streams: {t: {seed: 18446744073709551616}}\n",
		":1: streams.t.seed: '18446744073709551616' is too large; must be a whole "
		"number from 0 to 18446744073709551615 in plain digits"},
	{GOOD "    stride: 0\n",
		":7: streams.train.stride: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    extra: 1073741817\n", ":7: streams.train.extra: seq_len 8 + extra 1073741817 is over "
					 "1073741824 tokens; must be at most that"},
	{"streams:\n  t: {seed: 0, seq_len: 1073741824, datasets: [{name: a, path: b}]}\n",
		":2: streams.t.seq_len: seq_len 1073741824 + extra 1 is over 1073741824 tokens; must be at "
		"most that"},
	{GOOD "    epochs: 0\n",
		":7: streams.train.epochs: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    samples: 0\n",
		":7: streams.train.samples: '0' is too small; must be a whole number from 1 to "
		"18446744073709551615 in plain digits"},
	{GOOD "    eos: 70\n    vocab: 70\n",
		":7: streams.train.eos: 70 is no token of a vocab of 70; must be below it"},
	/* epochs with what it excludes */
	{GOOD "    epochs: 1\n    samples: 4\n",
		":8: streams.train.samples: the stream has epochs too (line 7); must have one of them"},
	{WEB ", weight: 1}\n    epochs: 1\n",
		":6: streams.train.datasets[0].weight: a stream with epochs (line 7) serves every "
		"window so often; must be left out"},
/* weights */
#define WEIGHT(text, fault)                                                                                  \
	{                                                                                                    \
		WEB ", weight: " text "}\n", ":6: streams.train.datasets[0].weight: '" text "' " fault       \
					     "; must be a finite number, 0 or more, such as 0.7"             \
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
	{WEB ", weight: 0}\n", ":5: streams.train.datasets: the weights do not sum to a finite number above "
			       "0; must have at least "
			       "one weight above 0"},
	{WEB ", weight: 1e308}\n      - {name: b, path: b, weight: 1e308}\n",
		":5: streams.train.datasets: the weights do not sum to a finite number above 0; must have at "
		"least one weight "
		"above 0"},
	{GOOD "      - {name: b, path: b, weight: 1e-12}\n",
		":7: streams.train.datasets[1].weight: 1e-12 is below 1/2^32 of the "
		"sum, so never served; must be larger, or 0"},
	/* datasets */
	{"streams: {t: {seed: 0, seq_len: 1, datasets: []}}\n",
		":1: streams.t.datasets: has 0 datasets; must have 1 to 1024"},
	{"streams: {t: {seed: 0, seq_len: 1, datasets: {a: b}}}\n",
		":1: streams.t.datasets: is a mapping; must be a list of datasets, each {name: …, path: …}"},
	{HEAD "      - web\n", ":6: streams.train.datasets[0]: 'web' is a single value; must be a mapping of "
			       "keys to values"},
	{HEAD "      - {path: web}\n",
		":6: streams.train.datasets[0].name: is missing; add name: a name of 1 to 64 bytes, no "
		"control characters"},
	{HEAD "      - {name: web}\n",
		":6: streams.train.datasets[0].path: is missing; add path: a file, a directory or a glob"},
	{GOOD "      - {path: b, name: web}\n", ":7: streams.train.datasets[1].name: 'web' is taken by the "
						"dataset on line 6; must be another name"},
	{HEAD "      - {name: '', path: web}\n", ":6: streams.train.datasets[0].name: is empty; must be a "
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
	{HEAD "      - {name: web, path: ~}\n",
		":6: streams.train.datasets[0].path: is null; must be a file, a directory or a glob"},
	{WEB ", dtype: u8}\n",
		":6: streams.train.datasets[0].dtype: 'u8' is none of u16 or u32; did you mean u16?"},
	{WEB ", dtype: float}\n",
		":6: streams.train.datasets[0].dtype: 'float' is unknown; must be u16 or u32"},
	{WEB ", shuffle: globl}\n", ":6: streams.train.datasets[0].shuffle: 'globl' is none of global, block "
				    "or none; did you mean global?"},
	{WEB ", block: 0}\n", ":6: streams.train.datasets[0].block: '0' is too small; must be a whole number "
			      "from 1 to 2147483648 "
			      "in plain digits"},
	{WEB ", group: 2147483649}\n",
		":6: streams.train.datasets[0].group: '2147483649' is too large; must be a whole number "
		"from 1 to 2147483648 in plain digits"},
	{WEB ", slide: yes}\n",
		":6: streams.train.datasets[0].slide: 'yes' is no truth value; must be true or false"},
	/* streams */
	{"streams:\n  a/b: {}\n",
		":2: streams.a/b: 'a/b' cannot name a stream; must be a name of 1 to 64 bytes, no control "
		"characters, no '/', no dot in front"},
	{"streams:\n  .a: {}\n",
		":2: streams..a: '.a' cannot name a stream; must be a name of 1 to 64 bytes, no control "
		"characters, no '/', no dot in front"},
	{"streams:\n  a: &a {seed: 1, seq_len: 1, datasets: *a}\n",
		":2: streams.a.datasets: is a mapping; must be a list of datasets, each {name: …, path: …}"},
	/* the daemon's own */
	{"memory: 1GB\n", ":1: memory: '1GB' is no size; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"memory: GiB\n",
		":1: memory: 'GiB' is no whole number; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"memory: 0\n", ":1: memory: '0' is too small; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"memory: 01MiB\n", ":1: memory: '01MiB' has a leading zero, which some read as octal; must be a "
			    "size such as 512MiB, "
			    "1GiB or plain bytes"},
	{"memory: 8388608TiB\n",
		":1: memory: '8388608TiB' is too large; must be a size such as 512MiB, 1GiB or plain bytes"},
	{"metrics: 9464\n", ":1: metrics: '9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: ':9464'\n",
		":1: metrics: ':9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: a:0\n", ":1: metrics: 'a:0' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: a:65536\n",
		":1: metrics: 'a:65536' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: ::1:9464\n",
		":1: metrics: '::1:9464' is no address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"io: urng\n", ":1: io: 'urng' is none of auto, uring or pread; did you mean uring?"},
	{"direct: 1\n", ":1: direct: '1' is no truth value; must be true or false"},
	{"allow_uids: 1000\n",
		":1: allow_uids: '1000' is a single value; must be a list of user numbers, such as [1000]"},
	{"allow_uids:\n  - 1\n  - -1\n", ":3: allow_uids[1]: '-1' is no whole number; must be a whole number "
					 "from 0 to 4294967294 in plain digits"},
	{"allow_uids: [4294967295]\n", ":1: allow_uids[0]: '4294967295' is too large; must be a whole number "
				       "from 0 to 4294967294 in plain digits"},
	{"state_dir:\n", ":1: state_dir: is empty; must be a directory"},
};

static void test_bad_files(void **state)
{
	const struct place *p = *state;
	int wrong = 0;

	for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
		char why[1024], expected[1024];
		struct config *c = load(p, bad_files[i].text, why);

		snprintf(expected, sizeof(expected), "%s%s", p->file, bad_files[i].why);
		if (c || strcmp(why, expected) != 0) {
			print_error("config:\n%s\nexpected: %s\n     got: %s\n", bad_files[i].text, expected,
				c ? "(it was taken)" : why);
			wrong++;
		}
		config_free(c);
	}
	assert_int_equal(wrong, 0);
}

static void test_long_socket(void **state)
{
	char text[512], why[1024], expected[1024], path[128];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[107] = 0;
	snprintf(text, sizeof(text), GOOD "socket: %s\n", path);
	config_free(load_good(*state, text));

	path[107] = 'x';
	path[108] = 0;
	snprintf(text, sizeof(text), GOOD "socket: %s\n", path);
	assert_null(load(*state, text, why));
	snprintf(expected, sizeof(expected),
		"%s:7: socket: %s has 108 bytes; a socket's path must have at most 107",
		((struct place *)*state)->file, path);
	assert_string_equal(why, expected);
}

static void test_no_file(void **state)
{
	const struct place *p = *state;
	char why[1024], expected[1024];

	assert_null(config_load(p->file, why, sizeof(why)));
	snprintf(expected, sizeof(expected),
		"%s: cannot be opened: No such file or directory; name the config file with -c", p->file);
	assert_string_equal(why, expected);
	assert_null(config_load(p->directory, why, sizeof(why)));
	snprintf(expected, sizeof(expected), "%s: cannot be read: Is a directory; name a config file with -c",
		p->directory);
	assert_string_equal(why, expected);
}

/* Any prefix of a config, and any byte of it changed, is taken or refused in one line; a sanitizer watches.
 */
static void test_mangled(void **state)
{
	static const char text[] = "memory: 1GiB\nallow_uids: [1, 2]\nmetrics: a:1\n" WEB
				   ", weight: 1.5, shuffle: block}\n    eos: 4\n";
	char copy[sizeof(text)], why[1024];
	size_t n = sizeof(text) - 1;

	for (size_t i = 0; i < 2 * n; i++) {
		memcpy(copy, text, n);
		if (i >= n)
			copy[i - n] ^= (char)(1 + i % 0x7f);
		write_bytes(*state, copy, i < n ? i : n);
		why[0] = 0;
		struct config *c = config_load(((struct place *)*state)->file, why, sizeof(why));

		assert_true(c || (why[0] && !strchr(why, '\n')));
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
		cmocka_unit_test_setup_teardown(test_window_bound, set_up, tear_down),
		cmocka_unit_test(test_example),
		cmocka_unit_test_setup_teardown(test_bad_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_socket, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_mangled, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
