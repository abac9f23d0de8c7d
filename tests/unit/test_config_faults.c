/*
 * Every kind of faulty config is refused with its line and field. The text is compared once for
 * each kind of fault.
 */
#include "tests/unit/config_files.h"

struct bad {
	const char *config;
	int line;
	const char *field; /* "": the whole file */
	const char *text;  /* NULL: another row compares it */
};

static const struct bad bad_files[] = {
	{"", 1, "", "the file is empty; must have at least streams:"},
	{"# nothing\n", 1, "", NULL},
	{"- a\n", 1, "", "is a list; must be a mapping of keys to values"},
	{"a\n", 1, "", "'a' is a single value; must be a mapping of keys to values"},
	{"memory: 1GiB\n", 1, "streams",
		"is missing; set it to a mapping of stream names to streams"},
	{"streams:\n", 1, "streams", "is empty; must be a mapping of stream names to streams"},
	{"streams: [a]\n", 1, "streams", NULL},
	{"streams: {}\n", 1, "streams", "has 0 streams; must have 1 to 1024"},
	{GOOD "socket: a: b\n", 7, "YAML",
		"mapping values are not allowed in this context (column 10); must be valid YAML"},
	{GOOD "\tio: auto\n", 7, "YAML",
		"found character that cannot start any token (column 1); must be valid YAML"},
	{WEB "\n", 7, "YAML", "did not find expected ',' or '}' (column 1); must be valid YAML"},
	{GOOD "...\nio: auto\n", 8, "YAML",
		"did not find expected <document start> (column 1); must be valid YAML"},
	{GOOD "---\nio: auto\n", 7, "", "a second YAML document begins here; must be only one"},
	{"io: \xff\n", 1, "YAML",
		"invalid leading UTF-8 octet at byte 4; must be a file of UTF-8 text"},
	/* keys */
	{GOOD "sockt: x\n", 7, "sockt", "unknown key; did you mean socket?"},
	{GOOD "colour: x\n", 7, "colour",
		"unknown key; must be one of socket, state_dir, memory, metrics, metrics_sessions, "
		"io, direct, "
		"allow_uids, admin_uids, stores, cache, streams"},
	{GOOD "    seqlen: 3\n", 7, "streams.train.seqlen", "unknown key; did you mean seq_len?"},
	{WEB ", wieght: 1}\n", 6, "streams.train.datasets[0].wieght",
		"unknown key; did you mean weight?"},
	{GOOD "    seed: 3\n", 7, "streams.train.seed",
		"is given twice; remove it here or on line 3"},
	{GOOD "  train: {}\n", 7, "streams.train", NULL},
	{GOOD "? [a]\n: b\n", 7, "", NULL},
	{WEB ", \"a\\nb\": 1}\n", 6, "streams.train.datasets[0].a?b",
		"unknown key; must be one of name, path, part, manifest, format, dtype, weight, "
		"max_epochs, shuffle, block, group, slide, column, label_mask, fetch, piece, sums"},
	{"streams: {t: {seq_len: 8, datasets: [{name: a, path: b}]}}\n", 1, "streams.t.seed",
		"is missing; set it to an integer from 0 to 2^64 - 1"},
	{"streams:\n  t:\n    seed: 1\n    datasets: [{name: a, path: b}]\n", 2,
		"streams.t.seq_len",
		"is missing; set it to a number of tokens from 1 to 1073741824"},
	{"streams: {t: {seed: 1, seq_len: 8}}\n", 1, "streams.t.datasets",
		"is missing; set it to a list of datasets, each {name: …, path: …}"},
	/* numbers */
	{"streams: {t: {seed: 1,\n  seq_len: 0}}\n", 2, "streams.t.seq_len",
		"'0' is too small; must be a number of tokens from 1 to 1073741824"},
	{"streams: {t: {seq_len: -1}}\n", 1, "streams.t.seq_len",
		"'-1' is not an integer in decimal digits; must be a number of tokens from 1 to "
		"1073741824"},
	{"streams: {t: {seq_len: 1073741825}}\n", 1, "streams.t.seq_len",
		"'1073741825' is too large; must be a number of tokens from 1 to 1073741824"},
	{"streams: {t: {seq_len: 010}}\n", 1, "streams.t.seq_len",
		"'010' has a leading zero, which YAML reads as octal; must be a number of tokens "
		"from 1 to 1073741824"},
	{"streams: {t: {seq_len: 0x10}}\n", 1, "streams.t.seq_len", NULL},
	{"streams: {t: {seq_len: 1e3}}\n", 1, "streams.t.seq_len", NULL},
	{"streams: {t: {seq_len: 1_000}}\n", 1, "streams.t.seq_len", NULL},
	{"streams: {t: {seq_len: \"8\"}}\n", 1, "streams.t.seq_len",
		"\"8\" is quoted; must be a number of tokens from 1 to 1073741824, without quotes"},
	{"streams: {t: {seq_len: [8]}}\n", 1, "streams.t.seq_len", NULL},
	{"streams: {t: {seed: }}\n", 1, "streams.t.seed", NULL},
	{"streams: {t: {seed: !!int 3}}\n", 1, "streams.t.seed",
		"has the tag tag:yaml.org,2002:int; write the value without one"},
	{"streams: {t: {seed: 18446744073709551616}}\n", 1, "streams.t.seed", NULL},
	{GOOD "    stride: 0\n", 7, "streams.train.stride", NULL},
	{GOOD "    extra: 1073741817\n", 7, "streams.train.extra",
		"seq_len 8 + extra 1073741817 is more than 1073741824 tokens; must be at most "
		"that"},
	{"streams:\n  t: {seed: 0, seq_len: 1073741824, datasets: [{name: a, path: b}]}\n", 2,
		"streams.t.seq_len", NULL},
	{GOOD "    epochs: 0\n", 7, "streams.train.epochs", NULL},
	{GOOD "    samples: 0\n", 7, "streams.train.samples", NULL},
	{GOOD "    eos: 70\n    vocab: 70\n", 7, "streams.train.eos",
		"70 is not below vocab (70); must be a token of the vocabulary"},
	{GOOD "    eos: 7\n    documents: 1\n", 8, "streams.train.documents",
		"'1' is not a boolean; must be true or false"},
	{GOOD "    loss_mask: yes please\n", 7, "streams.train.loss_mask", NULL},
	{WEB ", label_mask: masks}\n", 6, "streams.train.datasets[0].label_mask",
		"is used only with loss_mask; set loss_mask: true in the stream, or remove it"},
	{WEB ", label_mask: [a]}\n    loss_mask: true\n", 6, "streams.train.datasets[0].label_mask",
		NULL},
	/* epochs with what it excludes */
	{GOOD "    epochs: 1\n    samples: 4\n", 8, "streams.train.samples",
		"the stream also has epochs (line 7); remove one of them"},
	{WEB ", weight: 1}\n    epochs: 1\n", 6, "streams.train.datasets[0].weight",
		"a stream with epochs (line 7) serves every window that often; remove it"},
	/* weights */
	{WEB ", weight: .nan}\n", 6, "streams.train.datasets[0].weight",
		"'.nan' is not a number; must be a finite number ≥ 0"},
	{WEB ", weight: nan}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: .inf}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: 1e400}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: 1e-400}\n", 6, "streams.train.datasets[0].weight",
		"'1e-400' is too close to 0; must be a finite number ≥ 0"},
	{WEB ", weight: -1}\n", 6, "streams.train.datasets[0].weight",
		"'-1' is negative; must be a finite number ≥ 0"},
	{WEB ", weight: 0x1p3}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: 1e}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: half}\n", 6, "streams.train.datasets[0].weight", NULL},
	{WEB ", weight: 0}\n", 5, "streams.train.datasets",
		"the weights do not sum to a finite number above 0; give at least one dataset a "
		"weight above 0"},
	{WEB ", weight: 1e308}\n      - {name: b, path: b, weight: 1e308}\n", 5,
		"streams.train.datasets", NULL},
	{GOOD "      - {name: b, path: b, weight: 1e-12}\n", 7, "streams.train.datasets[1].weight",
		"1e-12 is below 2^-32 of the sum, so it is never served; must be larger, or 0"},
	/* datasets */
	{"streams: {t: {seed: 0, seq_len: 1, datasets: []}}\n", 1, "streams.t.datasets",
		"has 0 datasets; must have 1 to 1024"},
	{"streams: {t: {seed: 0, seq_len: 1, datasets: {a: b}}}\n", 1, "streams.t.datasets",
		"is a mapping; must be a list of datasets, each {name: …, path: …}"},
	{HEAD "      - web\n", 6, "streams.train.datasets[0]", NULL},
	{HEAD "      - {path: web}\n", 6, "streams.train.datasets[0].name",
		"is missing; set it to a name of 1 to 64 bytes, without control characters"},
	{HEAD "      - {name: web}\n", 6, "streams.train.datasets[0].path",
		"is missing; set it to a file, a directory, a glob or the URL of a prefix"},
	{GOOD "      - {path: b, name: web}\n", 7, "streams.train.datasets[1].name",
		"'web' is also the name of the dataset on line 6; must be unique"},
	{HEAD "      - {name: '', path: web}\n", 6, "streams.train.datasets[0].name", NULL},
	{HEAD "      - {name: \"a\\tb\", path: web}\n", 6, "streams.train.datasets[0].name",
		"'a?b' is not a valid name; must be a name of 1 to 64 bytes, without control "
		"characters"},
	{HEAD "      - {name: \"a\\0b\", path: web}\n", 6, "streams.train.datasets[0].name",
		"contains a zero byte; must be a name of 1 to 64 bytes, without control "
		"characters"},
	{HEAD "      - {path: web, name: "
	      "0123456789012345678901234567890123456789012345678901234567890123x}\n",
		6, "streams.train.datasets[0].name", NULL},
	{HEAD "      - {name: web, path: ~}\n", 6, "streams.train.datasets[0].path",
		"is null; must be a file, a directory, a glob or the URL of a prefix"},
	{WEB ", manifest: ~}\n", 6, "streams.train.datasets[0].manifest", NULL},
	{WEB ", dtype: u8}\n", 6, "streams.train.datasets[0].dtype",
		"'u8' is unknown; must be u16 or u32 (did you mean u16?)"},
	{WEB ", dtype: float}\n", 6, "streams.train.datasets[0].dtype",
		"'float' is unknown; must be u16 or u32"},
	{WEB ", shuffle: globl}\n", 6, "streams.train.datasets[0].shuffle",
		"'globl' is unknown; must be none, global or block (did you mean global?)"},
	{WEB ", block: 0}\n", 6, "streams.train.datasets[0].block", NULL},
	{WEB ", group: 2147483649}\n", 6, "streams.train.datasets[0].group", NULL},
	{WEB ", slide: yes}\n", 6, "streams.train.datasets[0].slide", NULL},
	/* max_epochs */
	{WEB ", max_epochs: 0}\n", 6, "streams.train.datasets[0].max_epochs", NULL},
	{WEB ", max_epochs: 1.5}\n", 6, "streams.train.datasets[0].max_epochs", NULL},
	{WEB ",\n         max_epochs: 2}\n    epochs: 1\n", 7,
		"streams.train.datasets[0].max_epochs", NULL},
/* schedule: its first entry is on line 9 */
#define TWO	   GOOD "      - {name: code, path: c}\n    schedule:\n"
#define STEP(text) TWO "      - {" text "}\n"
#define AT(text)   STEP("at: 1024, weights: {" text "}")
	{GOOD "    schedule: 3\n", 7, "streams.train.schedule", NULL},
	{GOOD "    schedule: {}\n", 7, "streams.train.schedule", NULL},
	{TWO "      - 1024\n", 9, "streams.train.schedule[0]", NULL},
	{GOOD "    epochs: 1\n    schedule: []\n", 8, "streams.train.schedule",
		"the mix of a finite stream (epochs, line 7) cannot change; remove one of them"},
	{GOOD "    schedule: []\n    samples: 9\n", 7, "streams.train.schedule",
		"the mix of a finite stream (samples, line 8) cannot change; remove one of them"},
	{STEP("at: 1024, weigths: {web: 1}"), 9, "streams.train.schedule[0].weigths",
		"unknown key; did you mean weights?"},
	{STEP("at: 1024"), 9, "streams.train.schedule[0].weights",
		"is missing; set it to a mapping of dataset names to weights, such as {web: 0.7, "
		"code: 0.3}"},
	{STEP("at: 1024, weights: 1"), 9, "streams.train.schedule[0].weights", NULL},
	{STEP("at: 1024, weights: [1]"), 9, "streams.train.schedule[0].weights", NULL},
	/* keys that exclude or need each other */
	{STEP("weights: {web: 1}"), 9, "streams.train.schedule[0]",
		"has no from; must have either at, or from, to and steps"},
	{STEP("from: 0, steps: 1, weights: {web: 1}"), 9, "streams.train.schedule[0]",
		"has no to; must have either at, or from, to and steps"},
	{STEP("from: 0, to: 1024, weights: {web: 1}"), 9, "streams.train.schedule[0]",
		"has no steps; must have either at, or from, to and steps"},
	{STEP("at: 1024,\n         from: 0, weights: {web: 1}"), 10, "streams.train.schedule[0]",
		"has at (line 9) and from; must have either at, or from, to and steps"},
	{STEP("at: 1024, to: 2048, weights: {web: 1}"), 9, "streams.train.schedule[0]",
		"has at (line 9) and to; must have either at, or from, to and steps"},
	{STEP("at: 1024, steps: 1, weights: {web: 1}"), 9, "streams.train.schedule[0]",
		"has at (line 9) and steps; must have either at, or from, to and steps"},
	/* positions */
	{STEP("at: 0, weights: {web: 1}"), 9, "streams.train.schedule[0].at",
		"0 is the beginning of the run; must be later (the run begins with the datasets' "
		"weights)"},
	{STEP("at: -1024, weights: {web: 1}"), 9, "streams.train.schedule[0].at", NULL},
	{STEP("at: 1e6, weights: {web: 1}"), 9, "streams.train.schedule[0].at", NULL},
	{STEP("at: 18446744073709551616, weights: {web: 1}"), 9, "streams.train.schedule[0].at",
		NULL},
	{STEP("at: 1000, weights: {web: 1}"), 9, "streams.train.schedule[0].at",
		"1000 is not a multiple of 1024; use 1024"},
	{STEP("at: 5000, weights: {web: 1}"), 9, "streams.train.schedule[0].at",
		"5000 is not a multiple of 1024; use 4096 or 5120"},
	{STEP("at: 18446744073709551615, weights: {web: 1}"), 9, "streams.train.schedule[0].at",
		NULL},
	{STEP("from: 1025, to: 4096, steps: 1, weights: {web: 1}"), 9,
		"streams.train.schedule[0].from", NULL},
	{STEP("from: 1024,\n         to: 4095, steps: 1, weights: {web: 1}"), 10,
		"streams.train.schedule[0].to", NULL},
	{STEP("from: 4096, to: 4096, steps: 1, weights: {web: 1}"), 9,
		"streams.train.schedule[0].to",
		"4096 is not after from (4096); must be a later position"},
	{STEP("from: 4096, to: 1024, steps: 1, weights: {web: 1}"), 9,
		"streams.train.schedule[0].to", NULL},
	{STEP("from: 1024, to: 4096, steps: 0, weights: {web: 1}"), 9,
		"streams.train.schedule[0].steps", NULL},
	{STEP("from: 1024, to: 4096, steps: 4, weights: {web: 1}"), 9,
		"streams.train.schedule[0].steps",
		"4 is more than the 3 blocks of 1024 samples between from and to; must be 1 to 3"},
	{AT("web: 1") "      - {at: 1024, weights: {web: 1}}\n", 10, "streams.train.schedule[1].at",
		"1024 is not after the previous entry (line 9), which ends at 1024; list the "
		"entries in ascending order"},
	{STEP("from: 1024, to: 4096, steps: 2, weights: {web: 1}") "      - {at: 3072, weights: "
								   "{web: 1}}\n",
		10, "streams.train.schedule[1].at", NULL},
	{STEP("from: 1024, to: 4096, steps: 2, weights: {web: 1}") "      - {from: 3072, to: 8192, "
								   "steps: 1, weights: {web: 1}}\n",
		10, "streams.train.schedule[1].from", NULL},
	/* weights */
	{AT("wbe: 1"), 9, "streams.train.schedule[0].weights.wbe",
		"is not a dataset of the stream, which has web, code; did you mean web?"},
	{AT("wikipedia: 1"), 9, "streams.train.schedule[0].weights.wikipedia",
		"is not a dataset of the stream, which has web, code"},
	{AT("web: 1, code: 2, web: 3"), 9, "streams.train.schedule[0].weights.web", NULL},
	{AT("[web]: 1"), 9, "streams.train.schedule[0].weights", NULL},
	{AT(""), 9, "streams.train.schedule[0].weights",
		"they do not sum to a finite number above 0; give at least one dataset a weight "
		"above 0"},
	{AT("web: 0, code: 0.0"), 9, "streams.train.schedule[0].weights", NULL},
	{AT("web: 1e308, code: 1e308"), 9, "streams.train.schedule[0].weights", NULL},
	{AT("web: 1,\n         code: 1e-12"), 10, "streams.train.schedule[0].weights.code", NULL},
	{AT("web: .nan"), 9, "streams.train.schedule[0].weights.web", NULL},
	{AT("web: -1"), 9, "streams.train.schedule[0].weights.web", NULL},
	{AT("web: "), 9, "streams.train.schedule[0].weights.web", NULL},
	/* streams */
	{"streams:\n  a/b: {}\n", 2, "streams.a/b",
		"'a/b' is not a valid name; must be a name of 1 to 64 bytes, without '/', control "
		"characters or a leading dot"},
	{"streams:\n  .a: {}\n", 2, "streams..a", NULL},
	{"streams:\n  a: &a {seed: 1, seq_len: 1, datasets: *a}\n", 2, "streams.a.datasets", NULL},
	/* keys of the daemon */
	{"memory: 1GB\n", 1, "memory",
		"'1GB' is not a size; must be a size such as 512MiB or 1GiB, or a number of bytes"},
	{"memory: GiB\n", 1, "memory", NULL},
	{"memory: 0\n", 1, "memory", NULL},
	{"memory: 01MiB\n", 1, "memory",
		"'01MiB' has a leading zero, which YAML reads as octal; must be a size such as "
		"512MiB or 1GiB, or a number of bytes"},
	{"memory: 8388608TiB\n", 1, "memory", NULL},
	{"metrics: 9464\n", 1, "metrics",
		"'9464' is not an address; must be HOST:PORT, such as 127.0.0.1:9464"},
	{"metrics: ':9464'\n", 1, "metrics", NULL},
	{"metrics: a:0\n", 1, "metrics", NULL},
	{"metrics: a:65536\n", 1, "metrics", NULL},
	{"metrics: ::1:9464\n", 1, "metrics", NULL},
	{"io: urng\n", 1, "io",
		"'urng' is unknown; must be auto, uring or pread (did you mean uring?)"},
	{"direct: 1\n", 1, "direct", NULL},
	{"allow_uids: 1000\n", 1, "allow_uids", NULL},
	{"allow_uids:\n  - 1\n  - -1\n", 3, "allow_uids[1]", NULL},
	{"admin_uids: 7\n", 1, "admin_uids", NULL},
	{"allow_uids: [4294967295]\n", 1, "allow_uids[0]", NULL},
	{"state_dir:\n", 1, "state_dir", NULL},
	/* users; the names are Debian's */
	{"allow_uids: [root, nobody, nobdy-tokend]\n", 1, "allow_uids[2]",
		"no user is called nobdy-tokend on this host; check it with `id nobdy-tokend`"},
	{"admin_uids: ['@no-group-tokend']\n", 1, "admin_uids[0]",
		"no group is called no-group-tokend on this host; check it with `getent group "
		"no-group-tokend`"},
	{"admin_uids: [@root]\n", 1, "YAML",
		"a word that begins with @ (column 14) needs quotes, as in \"@GROUP\""},
	/* keys at the wrong level */
	{GOOD "    shuffle: block\n", 7, "streams.train.shuffle",
		"is a key of a dataset; move it into an entry of datasets:"},
	{GOOD "seed: 1\n", 7, "seed",
		"is a key of a stream; move it below the stream's name in streams:"},
	{WEB ", memory: 1GiB}\n", 6, "streams.train.datasets[0].memory",
		"is a key of the whole config; move it out of streams:"},
	/* paths that only shells and other loaders understand */
	{"socket: ~/t.sock\n", 1, "socket", "~ is not expanded; write /home/ada/t.sock"},
	{"state_dir: ~ada\n", 1, "state_dir", "~ is not expanded; write the whole path"},
	{"streams: {t: {datasets: [{path: $HOME/web}]}}\n", 1, "streams.t.datasets[0].path",
		"variables ($HOME) are not expanded; write /home/ada/web"},
	{"streams: {t: {datasets: [{path: '/a/${TOKEND_NONE}/b'}]}}\n", 1,
		"streams.t.datasets[0].path",
		"variables ($TOKEND_NONE) are not expanded; write the whole path"},
	{"state_dir: file:///var/x\n", 1, "state_dir", "is a URL; write the path alone: /var/x"},
};

/* The entry of a list that @field is about, or FAULT_NO_INDEX. */
static int index_in(const char *field)
{
	const char *bracket = strrchr(field, '[');

	return bracket ? atoi(bracket + 1) : FAULT_NO_INDEX;
}

static bool is_expected(const struct place *p, const struct bad *bad, const struct fault *fault)
{
	char head[1024];
	size_t n = (size_t)snprintf(head, sizeof(head), "%s:%d: %s: ", p->file, bad->line,
		bad->field[0] ? bad->field : "config");

	return fault->code == FAULT_ARGUMENT && strcmp(fault->field, bad->field) == 0 &&
	       fault->index == index_in(bad->field) && strncmp(fault->text, head, n) == 0 &&
	       (!bad->text || strcmp(fault->text + n, bad->text) == 0);
}

static void test_faulty_config_is_refused_with_line_and_field(void **state)
{
	const struct place *p = *state;
	int wrong = 0;

	for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
		const struct bad *bad = &bad_files[i];
		struct fault fault;
		struct config *c = load(p, bad->config, &fault);

		if (c || !is_expected(p, bad, &fault)) {
			print_error("config:\n%s\nexpected: %d: %s: %s\n     got: %s\n",
				bad->config, bad->line, bad->field, bad->text ? bad->text : "…",
				c ? "(accepted)" : fault.text);
			wrong++;
		}
		config_free(c);
	}
	assert_int_equal(wrong, 0);
}

/* A schedule has at most as many entries as a cursor may have mixes, so its memory is bounded. */
static void test_schedule_has_a_limit(void **state)
{
	enum { MOST = LIMIT_CURSOR_BYTES / 5 };
	static const char head[] = GOOD "    schedule:\n";
	char *text = malloc(sizeof(head) + (size_t)(MOST + 1) * 48);
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
	assert_string_equal(fault.field, "streams.train.schedule");
}

static void test_socket_has_at_most_107_bytes(void **state)
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
		"%s:7: socket: %s has 108 bytes; must have at most 107",
		((struct place *)*state)->file, path);
	assert_string_equal(fault.text, expected);
}

static void test_unreadable_file_is_refused(void **state)
{
	const struct place *p = *state;
	char expected[1024];
	struct fault fault;

	assert_null(config_load(p->file, &fault));
	snprintf(expected, sizeof(expected),
		"%s: cannot be opened: No such file or directory; check the path given with -c",
		p->file);
	assert_string_equal(fault.text, expected);
	assert_null(config_load(p->directory, &fault));
	snprintf(expected, sizeof(expected),
		"%s: cannot be read: not a regular file; check the path given with -c",
		p->directory);
	assert_string_equal(fault.text, expected);
}

/* libyaml alone takes most of a minute for such a file. */
static void test_deep_nesting_is_refused_quickly(void **state)
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
		"%s:1: YAML: lists and mappings are nested deeper than 32 levels; a config needs 7",
		file);
	assert_string_equal(fault.text, expected);
	free(text);
}

static void test_large_file_is_refused(void **state)
{
	const char *file = ((struct place *)*state)->file;
	char expected[1024];
	struct fault fault;

	write_bytes(*state, GOOD, sizeof(GOOD) - 1);
	assert_int_equal(truncate(file, 2 << 20), 0);
	assert_null(config_load(file, &fault));
	snprintf(expected, sizeof(expected),
		"%s:1: config: the file is larger than 1 MiB; check the path given with -c", file);
	assert_string_equal(fault.text, expected);
}

/* Any prefix of a config, and a config with any byte changed, is accepted or refused in one line.
 */
static void test_mangled_config_gets_one_line(void **state)
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
		cmocka_unit_test_setup_teardown(
			test_faulty_config_is_refused_with_line_and_field, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_has_a_limit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_socket_has_at_most_107_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unreadable_file_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_deep_nesting_is_refused_quickly, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_large_file_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_mangled_config_gets_one_line, set_up, tear_down),
	};

	setenv("HOME", "/home/ada", 1);
	unsetenv("TOKEND_NONE");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
