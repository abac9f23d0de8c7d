/*
 * Datasets as they lie on disk: what a path means, how shards are sorted, and the exact line that
 * each fault gets.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/catalog/dataset_note.h"
#include "daemon/catalog/dataset_shard.h"
#include "daemon/catalog/stream_schedule.h"
#include "daemon/shard/list.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Each test works in a directory of its own. */
struct place {
	char directory[64];
	struct config *config;
	struct catalog *catalog;
	struct fault fault;
};

static int set_up(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	strcpy(p->directory, "/tmp/tokend-dataset-XXXXXX");
	assert_non_null(mkdtemp(p->directory));
	*state = p;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void close_catalog(struct place *p)
{
	catalog_free(p->catalog);
	config_free(p->config);
	p->catalog = NULL;
	p->config = NULL;
}

static int tear_down(void **state)
{
	struct place *p = *state;

	close_catalog(p);
	assert_int_equal(nftw(p->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
	free(p);
	return 0;
}

static const char *in(const struct place *p, const char *name)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/%s", p->directory, name);
	return path;
}

/* A file of @bytes zeros, with the directories above it. */
static void make(const struct place *p, const char *name, uint64_t bytes)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s", in(p, name));
	for (char *slash = path + strlen(p->directory) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*slash = '/';
	}
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	close(fd);
}

static void write_file(const struct place *p, const char *name, const void *bytes, size_t n)
{
	make(p, name, 0);
	FILE *file = fopen(in(p, name), "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static struct config *load_config(struct place *p)
{
	struct fault fault;
	struct config *config = config_load(in(p, "t.yaml"), &fault);

	if (!config)
		fail_msg("%s", fault.text);
	return config;
}

/* A config whose one stream, "train", has these datasets: one a line from line 6 on. */
static bool open_datasets(struct place *p, const char *stream_keys, const char *datasets)
{
	char text[4096];
	int n = snprintf(text, sizeof(text),
		"streams:\n  train:\n    seed: 42\n    %s\n    datasets:\n%s\n", stream_keys,
		datasets);

	close_catalog(p);
	write_file(p, "t.yaml", text, (size_t)n);
	p->config = load_config(p);
	p->catalog = catalog_open(p->config, &p->fault);
	unlink(in(p, "t.yaml"));
	return p->catalog;
}

static const struct stream *open_good(
	struct place *p, const char *stream_keys, const char *datasets)
{
	if (!open_datasets(p, stream_keys, datasets))
		fail_msg("%s", p->fault.text);
	return catalog_stream(p->catalog, "train");
}

/* @expected: all of it, with DIR for the test's directory. */
static void assert_refused_whole(
	struct place *p, const char *stream_keys, const char *datasets, const char *expected)
{
	char text[8192] = "";

	for (const char *at = expected, *dir; *at; at = dir + 3) {
		dir = strstr(at, "DIR");
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%.*s%s",
			dir ? (int)(dir - at) : (int)strlen(at), at, dir ? p->directory : "");
		if (!dir)
			break;
	}
	assert_false(open_datasets(p, stream_keys, datasets));
	assert_string_equal(p->fault.text, text);
}

/* @expected: what follows "FILE:LINE: FIELD: ". */
static void assert_refused(
	struct place *p, const char *stream_keys, const char *datasets, const char *expected)
{
	char whole[8192];

	snprintf(whole, sizeof(whole), "DIR/t.yaml:%s", expected);
	assert_refused_whole(p, stream_keys, datasets, whole);
}

#define LEN8 "seq_len: 8" /* windows of 9 tokens */

static void assert_shards(const struct dataset *d, const char *const *names, uint64_t n)
{
	assert_int_equal(d->table.shards, n);
	for (uint64_t s = 0; s < n; s++)
		assert_string_equal(dataset_shard_name(d, s), names[s]);
}

#define ASSERT_SHARDS(d, ...)                                                                      \
	assert_shards(d, (const char *const[]){__VA_ARGS__},                                       \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void assert_root(const struct place *p, const struct dataset *d, const char *root)
{
	char expected[4096];

	snprintf(expected, sizeof(expected), "%s%s%s", p->directory, *root ? "/" : "", root);
	assert_string_equal(d->root, expected);
}

/* ---- the vectors of the order's contract ---- */

static void make_vectors(const struct place *p)
{
	make(p, "web/a.bin", 2 * 50001);
	make(p, "web/b.bin", 2 * 30000);
	make(p, "web/c.bin", 2 * 5);
	make(p, "code/x.bin", 2 * 9000);
	make(p, "code/y.bin", 2 * 12345);
	make(p, "math/z.bin", 2 * 3000);
}

static void test_vectors(void **state)
{
	struct place *p = *state;

	make_vectors(p);
	const struct stream *s = open_good(p, "seq_len: 64",
		"      - {name: web, path: web, weight: 0.7}\n"
		"      - {name: code, path: 'code/*.bin', weight: 0.25, shuffle: block, block: 8, "
		"group: 3}\n"
		"      - {name: math, path: math/z.bin, weight: 0.05, shuffle: none, slide: "
		"true}\n");

	assert_int_equal(s->dataset[0].table.windows, 1249);
	assert_int_equal(s->dataset[1].table.windows, 332);
	assert_int_equal(s->dataset[2].table.windows, 46);
	assert_true(s->dataset[0].digest == UINT64_C(0xb3960afe8c9f9ec6));
	assert_true(s->dataset[1].digest == UINT64_C(0xe6b64183fa5596cf));
	assert_int_equal(s->token_bytes, 2);
	assert_root(p, &s->dataset[0], "web");
	assert_root(p, &s->dataset[1], "code");
	assert_root(p, &s->dataset[2], "math");
	ASSERT_SHARDS(&s->dataset[2], "z.bin");

	/* The cursor at 0 carries all of it, and its order is the one of the contract. */
	assert_string_equal(s->begin.stream, "train");
	assert_int_equal(s->begin.seed, 42);
	assert_int_equal(s->begin.datasets, 3);
	assert_true(s->begin.dataset[1].digest == s->dataset[1].digest);
	struct order order = cursor_order(&s->begin);
	struct order_place place;
	uint64_t shard, offset;

	assert_true(order_at(&order, 1024, &place));
	assert_int_equal(place.dataset, 0);
	table_locate(&s->dataset[0].table, &s->begin.order[0], 42, place.epoch, place.window,
		&shard, &offset);
	assert_string_equal(dataset_shard_name(&s->dataset[0], shard), "a.bin");
	assert_int_equal(offset, 32768);
}

/* With epochs a dataset without windows is allowed: it has nothing to serve. */
static void test_epochs(void **state)
{
	struct place *p = *state;

	make_vectors(p);
	make(p, "short.bin", 2);
	const struct stream *s = open_good(p, "seq_len: 64\n    epochs: 2",
		"      - {name: web, path: web}\n      - {name: short, path: short.bin}\n");

	assert_int_equal(s->dataset[1].table.windows, 0);
	assert_int_equal(cursor_end(&s->begin), 2 * 1249);
	assert_refused(p, "seq_len: 64\n    epochs: 2", "      - {name: short, path: short.bin}",
		"2: streams.train: epochs: no dataset has a single window: the stream would be "
		"empty");
}

/* ---- what a path means ---- */

static void test_sorted_by_bytes(void **state)
{
	static const char *const names[] = {
		"a.bin", "a/b.bin", "a-b.bin", "B.bin", "a/c/d.npy", "a0.bin", "\xc3\xa9.bin"};
	struct place *p = *state;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[64];

		snprintf(path, sizeof(path), "d/%s", names[i]);
		make(p, path, 100);
	}
	make(p, "d/.hidden.bin", 100);
	make(p, "d/.hidden/x", 1);
	make(p, "d/a/.x", 1);
	const struct dataset *d = open_good(p, LEN8, "      - {name: d, path: d/}")->dataset;

	assert_root(p, d, "d");
	ASSERT_SHARDS(
		d, "B.bin", "a-b.bin", "a.bin", "a/b.bin", "a/c/d.npy", "a0.bin", "\xc3\xa9.bin");
	for (uint64_t s = 0; s < d->table.shards; s++) {
		char path[4096], expected[4200];

		assert_int_equal(dataset_find_shard(d, dataset_shard_name(d, s)), s);
		dataset_shard_path(d, s, path, sizeof(path));
		snprintf(expected, sizeof(expected), "%s/d/%s", p->directory,
			dataset_shard_name(d, s));
		assert_string_equal(path, expected);
		assert_int_equal(access(path, R_OK), 0);
	}
	assert_int_equal(dataset_find_shard(d, "a"), -1);
	assert_int_equal(dataset_find_shard(d, ""), -1);
	assert_int_equal(dataset_find_shard(d, "\xff"), -1);
}

static void test_globs(void **state)
{
	struct place *p = *state;

	make(p, "d/x1.bin", 100);
	make(p, "d/x2.bin", 100);
	make(p, "d/y.txt", 100);
	make(p, "d/.x3.bin", 100);
	make(p, "e/1/t/a.bin", 100);
	make(p, "e/2/t/a.bin", 100);
	make(p, "e/2/u/a.bin", 100);
	make(p, "e/3/t", 3);
	const struct stream *s = open_good(p, LEN8,
		"      - {name: a, path: 'd/x*.bin'}\n"
		"      - {name: b, path: 'e/*/t/*.bin'}\n"
		"      - {name: c, path: 'd/*[13].bin'}\n"
		"      - {name: d, path: 'e/[12]'}\n"
		"      - {name: e, path: './e//?//t//a.bin'}\n");

	assert_root(p, &s->dataset[0], "d");
	ASSERT_SHARDS(&s->dataset[0], "x1.bin", "x2.bin");
	assert_root(p, &s->dataset[1], "e");
	ASSERT_SHARDS(&s->dataset[1], "1/t/a.bin", "2/t/a.bin");
	ASSERT_SHARDS(&s->dataset[2], "x1.bin");
	ASSERT_SHARDS(&s->dataset[3], "1/t/a.bin", "2/t/a.bin", "2/u/a.bin");
	assert_root(p, &s->dataset[4], "./e");
	ASSERT_SHARDS(&s->dataset[4], "1/t/a.bin", "2/t/a.bin");
}

/* A name that exists is taken as it is, and an absolute path is not below the config. */
static void test_literal(void **state)
{
	struct place *p = *state;
	char datasets[256];

	make(p, "d/a[1]*.bin", 100);
	make(p, "d/a1.bin", 100);
	snprintf(datasets, sizeof(datasets), "      - {name: d, path: '%s/d/a[1]*.bin'}",
		p->directory);
	const struct dataset *d = open_good(p, LEN8, datasets)->dataset;

	assert_root(p, d, "d");
	ASSERT_SHARDS(d, "a[1]*.bin");
}

static void test_links(void **state)
{
	struct place *p = *state;
	char target[4096];

	make(p, "far/a.bin", 100);
	make(p, "far/deep/b.bin", 100);
	make(p, "d/c.bin", 100);
	snprintf(target, sizeof(target), "%s", in(p, "far/a.bin"));
	assert_int_equal(symlink(target, in(p, "d/file.bin")), 0);
	assert_int_equal(symlink("../far/deep", in(p, "d/dir")), 0);
	const struct dataset *d = open_good(p, LEN8, "      - {name: d, path: d}")->dataset;

	ASSERT_SHARDS(d, "c.bin", "dir/b.bin", "file.bin");

	assert_int_equal(symlink("../../d", in(p, "far/deep/back")), 0);
	assert_refused(p, LEN8, "      - {name: d, path: d}",
		"6: streams.train.datasets[0].path: DIR/d/dir/back: is a link back to a directory "
		"that it "
		"lies in; remove it; must be "
		"a file, a directory or a glob that can be read");
	unlink(in(p, "far/deep/back"));
	assert_int_equal(symlink("nowhere", in(p, "d/gone.bin")), 0);
	assert_refused(p, LEN8, "      - {name: d, path: d}",
		"6: streams.train.datasets[0].path: DIR/d/gone.bin: No such file or directory; "
		"must be a "
		"file, a directory or a glob "
		"that can be read");
}

/* ---- what is refused ---- */

static void test_missing(void **state)
{
	struct place *p = *state;

	assert_refused(p, LEN8, "      - {name: a, path: nix}",
		"6: streams.train.datasets[0].path: DIR/nix: No such file or directory; must be a "
		"file, a "
		"directory or a glob that "
		"can be read");
	assert_refused(p, LEN8, "      - {name: a, path: 'nix/*.bin'}",
		"6: streams.train.datasets[0].path: DIR/nix: No such file or directory; must be a "
		"file, a "
		"directory or a glob that "
		"can be read");
	assert_refused(p, LEN8, "      - {name: a, path: '*.bin'}",
		"6: streams.train.datasets[0].path: DIR/*.bin: no file there; must be at least one "
		"shard");
	assert_int_equal(mkdir(in(p, "empty"), 0755), 0);
	assert_refused(p, LEN8, "      - name: a\n        path: empty",
		"7: streams.train.datasets[0].path: DIR/empty: no file there; must be at least one "
		"shard");
}

static void test_short(void **state)
{
	struct place *p = *state;

	make(p, "d/a.bin", 2 * 7);
	make(p, "d/b.bin", 2 * 8);
	make(p, "d/c.bin", 0);
	make(p, "e.bin", 2 * 9);
	assert_refused(p, LEN8, "      - {name: e, path: e.bin}\n      - {name: d, path: d}",
		"7: streams.train.datasets[1].path: no shard holds a window: the largest, b.bin, "
		"has 8 "
		"tokens, a window is 9 (seq_len "
		"8 + extra 1); must have a longer shard, a smaller seq_len or weight 0");
	const struct stream *s = open_good(
		p, LEN8, "      - {name: e, path: e.bin}\n      - {name: d, path: d, weight: 0}");

	assert_int_equal(s->dataset[0].table.windows, 1);
	assert_int_equal(s->dataset[1].table.windows, 0);
	assert_int_equal(s->dataset[1].table.shards, 3);
}

static void test_widths(void **state)
{
	struct place *p = *state;

	make(p, "a.bin", 40);
	make(p, "b.bin", 40);
	make(p, "c.bin", 41);
	make(p, "d.bin", 42);
	/* The widest sets the stream's width; the other one's shards are converted. */
	const struct stream *s = open_good(p, LEN8,
		"      - {name: a, path: a.bin}\n      - {name: b, path: b.bin, dtype: u32}");

	assert_int_equal(s->token_bytes, 4);
	assert_int_equal(s->dataset[0].token_bytes, 4);
	assert_false(dataset_is_plain(&s->dataset[0], 0));
	assert_int_equal(s->dataset[0].table.tokens[0], 20);
	assert_true(dataset_is_plain(&s->dataset[1], 0));
	assert_int_equal(s->dataset[1].table.tokens[0], 10);
	assert_refused(p, LEN8, "      - {name: c, path: c.bin}",
		"6: streams.train.datasets[0].path: DIR/c.bin: its size, 41 bytes, is no multiple "
		"of 2 (a "
		"token of u16): it is cut "
		"short, or `dtype` is wrong");
	assert_refused(p, LEN8, "      - {name: d, path: d.bin, dtype: u32}",
		"6: streams.train.datasets[0].path: DIR/d.bin: its size, 42 bytes, is no multiple "
		"of 4 (a "
		"token of u32): it is cut "
		"short, or `dtype` is wrong");
	assert_refused(p, LEN8 "\n    eos: 65536\n    documents: true",
		"      - {name: a, path: a.bin}",
		"5: streams.train.eos: 65536 is no u16 token, so no document of dataset a would end; must be at "
		"most "
		"65535");
	s = open_good(p, LEN8 "\n    eos: 65536\n    documents: true",
		"      - {name: a, path: a.bin, dtype: u32}");

	assert_int_equal(s->token_bytes, 4);
	assert_int_equal(s->dataset->table.tokens[0], 10);
}

/* What the stream wants said of its windows must be somewhere to be found. */
static void test_annotations(void **state)
{
	struct place *p = *state;

	make(p, "a.bin", 40);
	make(p, "i/a.ds", 40);
	write_file(p, "i/a.ds.index", "\7\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0", 16);
	make(p, "i/b.ds", 40);
	make(p, "c/a.npy", 40);
	make(p, "c/a.csv.gz", 0);
	make(p, "c/b.npy", 40);
	assert_refused(p, LEN8 "\n    documents: true", "      - {name: a, path: a.bin}",
		"5: streams.train.documents: nothing says where a document ends in dataset a: "
		"a.bin, a shard "
		"of "
		"format flat, has no index; must have eos, the token that ends one, beside it");
	assert_refused(p, LEN8 "\n    documents: true",
		"      - {name: i, path: i/a.ds}\n      - {name: j, path: i}",
		"5: streams.train.documents: nothing says where a document ends in dataset j: "
		"b.ds, a shard "
		"of "
		"format datatrove, has no index; must have eos, the token that ends one, beside "
		"it");
	const struct stream *s =
		open_good(p, LEN8 "\n    documents: true", "      - {name: i, path: i/a.ds}");

	assert_true(s->dataset[0].marked && s->dataset[0].plain);
	s = open_good(p, LEN8 "\n    documents: true", "      - {name: c, path: c/a.npy}");
	assert_true(s->dataset[0].marked && s->dataset[0].plain);
	s = open_good(p, LEN8 "\n    eos: 3\n    documents: true",
		"      - {name: i, path: i}\n      - {name: a, path: a.bin}");
	assert_true(s->dataset[0].marked && !s->dataset[1].marked);
	s = open_good(p, LEN8 "\n    eos: 3", "      - {name: i, path: i}");
	assert_false(s->dataset[0].marked);
	s = open_good(p, LEN8 "\n    loss_mask: true",
		"      - {name: i, path: i}\n      - {name: c, path: c/a.npy}\n      - {name: a, "
		"path: "
		"a.bin}");
	assert_true(!s->dataset[0].marked && s->dataset[1].marked && !s->dataset[2].marked);
}

/* More lists of bounds than are kept: a shuffle over all of them is worth a word. */
static void test_many_bounds(void **state)
{
	struct place *p = *state;
	char name[64], note[512];

	for (int i = 0; i < 501; i++) {
		snprintf(name, sizeof(name), "b/%03d.npy", i);
		make(p, name, 40);
		snprintf(name, sizeof(name), "b/%03d.csv.gz", i);
		make(p, name, 0);
	}
	const struct stream *s =
		open_good(p, LEN8 "\n    documents: true", "      - {name: b, path: b}");

	assert_true(dataset_note(s->dataset, 1, note, sizeof(note)));
	assert_string_equal(note,
		"shuffle: global takes windows from any of its 501 shards, and of their "
		"lists of document bounds "
		"(.csv.gz) some 500 are kept at a time: most windows have a whole list "
		"unpacked; write shuffle: "
		"block");
	s = open_good(
		p, LEN8 "\n    documents: true", "      - {name: b, path: b, shuffle: block}");
	assert_false(dataset_note(s->dataset, 1, note, sizeof(note)));
	s = open_good(p, LEN8, "      - {name: b, path: b}");
	assert_false(dataset_note(s->dataset, 1, note, sizeof(note)));
	s = open_good(p, LEN8 "\n    documents: true", "      - {name: b, path: b/*1.*}");
	assert_false(dataset_note(s->dataset, 1, note, sizeof(note)));
}

static void test_loss_masks(void **state)
{
	struct place *p = *state;

	make(p, "i/a.ds", 40);
	make(p, "i/a.ds.loss", 20);
	make(p, "i/b.ds", 40);
	make(p, "c/a.npy", 40);
	make(p, "c/b.npy", 40);
	make(p, "c/b.csv.gz", 0);
	make(p, "d/a.npy", 40);
	make(p, "d/x/b.npy", 40);
	make(p, "masks/a.npy", 20);
	make(p, "masks/x/b.npy", 20);
	assert_refused(p, LEN8 "\n    loss_mask: true", "      - {name: i, path: i}",
		"7: streams.train.datasets[0].path: DIR/i/b.ds: has no loss mask beside it, the "
		"first shard, "
		"a.ds, "
		"has one; all or none must");
	assert_refused(p, LEN8 "\n    loss_mask: true", "      - {name: c, path: c}",
		"7: streams.train.datasets[0].path: DIR/c/b.npy: has a list of document bounds "
		"beside it, "
		"the first "
		"shard, a.npy, has none; all or none must");
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: i, path: i/a.ds, label_mask: masks}",
		"7: streams.train.datasets[0].path: DIR/i/a.ds: has no loss mask: DIR/masks/a.ds "
		"is not "
		"there; must "
		"be one for each shard of the dataset");
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: d, path: d, label_mask: d/x/}",
		"7: streams.train.datasets[0].label_mask: DIR/d/x/b.npy lies in it and is among "
		"the shards; "
		"must be "
		"a directory that path does not reach");
	const struct stream *s = open_good(
		p, LEN8 "\n    loss_mask: true", "      - {name: d, path: d, label_mask: masks//}");

	assert_true(s->dataset[0].marked);
	make(p, "masks/x/b.npy", 21);
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: d, path: d, label_mask: masks}",
		"7: streams.train.datasets[0].path: DIR/d/x/b.npy: its loss mask b.npy: its size "
		"is 21 "
		"bytes; must be 20, "
		"one for "
		"each token of the shard");
	open_good(p, LEN8, "      - {name: i, path: i}\n      - {name: c, path: c}");
}

static void test_format(void **state)
{
	struct place *p = *state;

	make(p, "a.tokens", 40);
	assert_refused(p, LEN8, "      - {name: a, path: a.tokens}",
		"6: streams.train.datasets[0].path: DIR/a.tokens: is of no known format (megatron, "
		"npy, "
		"llmc, arrow, datatrove, mds, flat; flat ones have names that end in .bin or "
		".npy); "
		"move it away, or say `format: flat` if it is plain tokens");
	assert_int_equal(open_good(p, LEN8, "      - {name: a, path: a.tokens, format: flat}")
				 ->dataset->table.tokens[0],
		20);
	assert_refused(p, LEN8, "      - name: a\n        path: a.tokens\n        format: parquet",
		"8: streams.train.datasets[0].format: 'parquet' is unknown; must be auto or one "
		"of: "
		"megatron, npy, llmc, arrow, datatrove, mds, flat");
	assert_int_equal(mkfifo(in(p, "pipe.bin"), 0644), 0);
	assert_refused(p, LEN8, "      - {name: a, path: pipe.bin}",
		"6: streams.train.datasets[0].path: DIR/pipe.bin: is no regular file; a shard must "
		"be one");
}

/* Files of other formats are not read as tokens, unless the config insists. */
static void test_foreign(void **state)
{
	static const struct {
		const char *file, *bytes;
		size_t n;
		const char *kind;
	} files[] = {
		{"m.bin", "MMIDIDX\0\0\1\0\0", 12, "a Megatron index"},
		{"z.bin", "PK\3\4", 4, "a zip archive (.npz, or torch.save)"},
	};
	struct place *p = *state;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char datasets[128], expected[512], bytes[64] = {0};

		memcpy(bytes, files[i].bytes, files[i].n);
		write_file(p, files[i].file, bytes, sizeof(bytes));
		snprintf(datasets, sizeof(datasets), "      - {name: a, path: %s}", files[i].file);
		snprintf(expected, sizeof(expected),
			"6: streams.train.datasets[0].path: DIR/%s: is %s, which is no shard of "
			"tokens; move "
			"it "
			"away, or say `format: flat` if it is plain tokens",
			files[i].file, files[i].kind);
		assert_refused(p, LEN8, datasets, expected);
		snprintf(datasets, sizeof(datasets), "      - {name: a, path: %s, format: flat}",
			files[i].file);
		assert_int_equal(open_good(p, LEN8, datasets)->dataset->table.tokens[0], 32);
	}
}

/* ---- a shard put in another's place ---- */

static struct stat stat_of(const struct place *p, const char *name)
{
	struct stat st;

	assert_int_equal(stat(in(p, name), &st), 0);
	return st;
}

static void test_same_shard(void **state)
{
	struct place *p = *state;
	char expected[256];
	struct fault fault;

	make(p, "a.bin", 40);
	const struct dataset *d = open_good(p, LEN8, "      - {name: a, path: a.bin}")->dataset;
	struct stat listed = stat_of(p, "a.bin"), st = listed;

	assert_true(dataset_same_shard(d, 0, &st, &fault));
	assert_int_equal(truncate(in(p, "a.bin"), 38), 0);
	st = stat_of(p, "a.bin");
	assert_false(dataset_same_shard(d, 0, &st, &fault));
	assert_string_equal(fault.text, "size was 40 when the shard was listed and is 38 now");
	st = listed;
	st.st_ino++;
	assert_false(dataset_same_shard(d, 0, &st, &fault));
	assert_non_null(strstr(fault.text, "inode was "));
	st = listed;
	st.st_mtim.tv_nsec ^= 1;
	assert_false(dataset_same_shard(d, 0, &st, &fault));
	snprintf(expected, sizeof(expected),
		"mtime (ns) was %lld%09ld when the shard was listed and is %lld%09ld now",
		(long long)listed.st_mtim.tv_sec, listed.st_mtim.tv_nsec,
		(long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	assert_string_equal(fault.text, expected);
}

/* ---- manifests ---- */

#define DIGEST	 ",\"digest\":\"0123456789abcdef\""
#define FLAT	 ",\"format\":\"flat\",\"dtype\":\"u16\""
#define LISTED	 "      - {name: d, path: d, manifest: m.jsonl}"
#define A_LINE	 "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
#define TWO_LINE "{\"path\":\"deep/b.bin\"" FLAT ",\"tokens\":9,\"size\":18" DIGEST "}\n"

static void write_manifest(const struct place *p, const char *text)
{
	write_file(p, "m.jsonl", text, strlen(text));
}

/* None of its shards is there: what is not touched is not missed. */
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

/* Widths, samples and frames come from the lines alone. */
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

static void test_manifest_faults(void **state)
{
#define TOKENS(n) "{\"path\":\"a.bin\"" FLAT ",\"tokens\":" n ",\"size\":40" DIGEST "}\n"
#define NAME(n)	  "{\"path\":\"" n "\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
#define NAMED(n, what)                                                                             \
	{                                                                                          \
		NAME(n), "DIR/m.jsonl:1: path '" n "' " what                                       \
			 "; must lead to a file below the dataset's directory"                     \
	}
	static const struct {
		const char *text, *expected;
	} faults[] = {
		{A_LINE "{\"path\":\n", "DIR/m.jsonl:2: its JSON is broken at byte 9: unexpected "
					"token near end of file"},
		{A_LINE "\n", "DIR/m.jsonl:2: its JSON is broken at byte 1: unexpected token near "
			      "end of file"},
		{"[]\n", "DIR/m.jsonl:1: its JSON is an array; must be an object"},
		{A_LINE "{}", "DIR/m.jsonl:2: does not end, after 2 bytes; must be one object and "
			      "a newline, at "
			      "most 32767 bytes"},
		{"{\"path\":\"a\",\"path\":\"b\"}\n", "DIR/m.jsonl:1: its JSON is broken at byte "
						      "18: duplicate object key near '\"path\"'"},
		{"{\"format\":\"flat\"}\n", "DIR/m.jsonl:1: path is missing; must be a string"},
		{"{\"path\":\"a.bin\"" FLAT ",\"tokens\":1,\"size\":2}\n",
			"DIR/m.jsonl:1: digest is missing; must be a string"},
		{TOKENS("-1"), "DIR/m.jsonl:1: tokens is -1; must be 0 to 1152921504606846976"},
		{TOKENS("1e3"), "DIR/m.jsonl:1: tokens is a fraction; must be a whole number"},
		{TOKENS("\"20\""), "DIR/m.jsonl:1: tokens is a string; must be a whole number"},
		{TOKENS("9223372036854775807"), "DIR/m.jsonl:1: tokens is 9223372036854775807; "
						"must be 0 to 1152921504606846976"},
		{TOKENS("9223372036854775808"),
			"DIR/m.jsonl:1: its JSON is broken at byte 74: too big integer near "
			"'9223372036854775808'"},
		{TOKENS("20,\"sha\":1"),
			"DIR/m.jsonl:1: has members besides path, format, dtype, tokens, size, "
			"digest, "
			"sample_tokens, row_tokens and frame_bytes; must have no others"},
		{TOKENS("20,\"sample_tokens\":9"),
			"DIR/m.jsonl:1: tokens is 20, no multiple of sample_tokens, 9"},
		{TOKENS("20,\"row_tokens\":9"),
			"DIR/m.jsonl:1: tokens is 20, no multiple of row_tokens, 9"},
		{TOKENS("20,\"row_tokens\":5,\"sample_tokens\":5"),
			"DIR/m.jsonl:1: row_tokens is there beside sample_tokens; must be one of "
			"them"},
		{TOKENS("20,\"frame_bytes\":1099511627776"),
			"DIR/m.jsonl:1: frame_bytes is 1099511627776; "
			"must be at most 268435456, a quarter of "
			"`memory`"},
		NAMED("../a.bin", "has a part that is empty, . or .."),
		NAMED("x/../../a.bin", "has a part that is empty, . or .."),
		NAMED("./a.bin", "has a part that is empty, . or .."),
		NAMED("x//a.bin", "has a part that is empty, . or .."),
		NAMED("x/", "has a part that is empty, . or .."),
		NAMED("", "has a part that is empty, . or .."),
		NAMED("/etc/passwd", "is absolute"),
		{NAME("a\\u0000b"),
			"DIR/m.jsonl:1: its JSON is broken at byte 18: \\u0000 is not allowed "
			"without JSON_ALLOW_NUL near '\"a\\u0000b\"'"},
		{A_LINE A_LINE, "DIR/m.jsonl:2: path 'a.bin' is there twice; must be there once"},
		{TWO_LINE A_LINE, "DIR/m.jsonl:2: path 'a.bin' comes after 'deep/b.bin'; lines "
				  "must ascend by "
				  "it, byte by byte (LC_ALL=C sort)"},
		{"{\"path\":\"a\",\"format\":\"parquet\",\"dtype\":\"u16\",\"tokens\":1,\"size\":"
		 "2" DIGEST "}\n",
			"DIR/m.jsonl:1: format 'parquet' is unknown; must be one of: megatron, "
			"npy, llmc, "
			"arrow, datatrove, mds, flat"},
		{"{\"path\":\"a\",\"format\":\"npy\",\"dtype\":\"f4\",\"tokens\":1,\"size\":"
		 "2" DIGEST "}\n",
			"DIR/m.jsonl:1: dtype 'f4' is unknown; must be u8, i8, u16, i16, u32, i32, "
			"u64 or "
			"i64"},
		{"{\"path\":\"a\"" FLAT
		 ",\"tokens\":1,\"size\":2,\"digest\":\"0123456789ABCDEF\"}\n",
			"DIR/m.jsonl:1: digest is '0123456789ABCDEF'; must be 16 hexadecimal "
			"digits"},
		{A_LINE "{\"path\":\"b\",\"format\":\"npy\",\"dtype\":\"u16\",\"tokens\":1,"
			"\"size\":2" DIGEST "}\n",
			"DIR/m.jsonl:2: format is npy, that of the first shard, a.bin, is flat; "
			"must be one "
			"format"},
		{A_LINE "{\"path\":\"b\",\"format\":\"flat\",\"dtype\":\"u32\",\"tokens\":1,"
			"\"size\":4" DIGEST "}\n",
			"DIR/m.jsonl:2: dtype u32 is served in 4 bytes, that of the first shard, "
			"a.bin, in "
			"2; "
			"must be one width"},
		{A_LINE "{\"path\":\"b\"" FLAT ",\"tokens\":9,\"size\":18" DIGEST
			",\"sample_tokens\":9}\n",
			"DIR/m.jsonl:2: sample_tokens is 9 (0: none), that of the first shard, "
			"a.bin, is 0; "
			"must "
			"be alike"},
		{"", "DIR/t.yaml:6: streams.train.datasets[0].manifest: DIR/m.jsonl: is empty; "
		     "must list a "
		     "shard; must be a file that `tokctl inspect --manifest` wrote"},
	};
	struct place *p = *state;
	char text[1 << 17];

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		write_manifest(p, faults[i].text);
		assert_refused_whole(p, LEN8, LISTED, faults[i].expected);
	}
	memset(text, 'x', sizeof(text));
	write_file(p, "m.jsonl", text, sizeof(text));
	assert_refused_whole(p, LEN8, LISTED,
		"DIR/m.jsonl:1: does not end, after 32767 bytes; must be one object and a newline, "
		"at most "
		"32767 bytes");
	write_file(p, "m.jsonl", A_LINE "\0\n", sizeof(A_LINE "\0"));
	assert_refused_whole(p, LEN8, LISTED,
		"DIR/m.jsonl:2: does not end, after 0 bytes; must be one object and a newline, at "
		"most 32767 "
		"bytes");
	text[0] = 0;
	for (int i = 0; i < 17; i++) /* 2^60 each */
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			"{\"path\":\"%02d.bin\"" FLAT
			",\"tokens\":1152921504606846976,\"size\":40" DIGEST "}\n",
			i);
	write_manifest(p, text);
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].path: more than 2^64 tokens in all; must be fewer");
	unlink(in(p, "m.jsonl"));
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].manifest: DIR/m.jsonl: No such file or directory; "
		"must be a "
		"file "
		"that `tokctl inspect --manifest` wrote");
	assert_int_equal(mkfifo(in(p, "m.jsonl"), 0644), 0);
	assert_refused(p, LEN8, LISTED,
		"6: streams.train.datasets[0].manifest: DIR/m.jsonl: is no regular file; must be a "
		"file that "
		"`tokctl inspect --manifest` wrote");
	unlink(in(p, "m.jsonl"));
	write_manifest(p, A_LINE);
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: 'd/*.bin'}",
		"6: streams.train.datasets[0].path: d/*.bin: must be the directory that the names "
		"in "
		"DIR/m.jsonl start at");
	make(p, "d/a.bin", 40);
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d/a.bin}",
		"6: streams.train.datasets[0].path: d/a.bin: must be the directory that the names "
		"in "
		"DIR/m.jsonl start at");
	assert_refused_whole(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d, format: npy}",
		"DIR/m.jsonl:1: format is flat, the config says npy; must be the same");
	assert_refused(p, LEN8, "      - {name: d, manifest: m.jsonl, path: d, format: nix}",
		"6: streams.train.datasets[0].format: 'nix' is unknown; must be auto or one of: "
		"megatron, "
		"npy, "
		"llmc, arrow, datatrove, mds, flat");
	assert_refused(p, "seq_len: 40", LISTED,
		"6: streams.train.datasets[0].path: no shard holds a window: the largest, a.bin, "
		"has 20 "
		"tokens, a window is 41 (seq_len 40 + extra 1); must have a longer shard, a "
		"smaller seq_len "
		"or weight 0");
}

static const char *manifest_note(const struct dataset *d)
{
	static char text[LIMIT_TEXT_BYTES];

	assert_true(dataset_note(d, 2, text, sizeof(text)));
	return text;
}

/* Where its names start: a directory by its name, whatever characters it has; that it is away is
 * said. */
static void test_manifest_directory(void **state)
{
	struct place *p = *state;

	write_manifest(p, A_LINE);
	assert_non_null(strstr(manifest_note(open_good(p, LEN8, LISTED)->dataset),
		"/d, which cannot be read now: No such file or directory"));
	make(p, "d/a.bin", 40);
	assert_string_equal(manifest_note(open_good(p, LEN8, LISTED)->dataset),
		"its shards are as m.jsonl says; none was looked at, each is compared when it is "
		"read first");
	make(p, "[d]*/a.bin", 40);
	open_good(p, LEN8, "      - {name: d, manifest: m.jsonl, path: '[d]*'}");
}

/* What dataset_open_shard() says of the first shard, "" if it is opened. */
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

/* Whether it has an index of its documents is as it was when it was looked at first, whoever
 * looked. */
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

/* Other bytes of the same length in the same file. */
static void change(const struct place *p, const char *name)
{
	const struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
	int fd = open(in(p, name), O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

/* What lies beside a shard is held to what it was when the shard was listed, or, of a manifest,
 * first opened.
 */
static void test_files_beside(void **state)
{
#define PLAIN "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST "}\n"
	/* One sequence of 20 tokens, one document. */
	static const uint8_t idx[34 + 12 + 16] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0,
		0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 20, [54] = 1};
	static const uint8_t ends[8] = {20}, mask[20] = {1};
	static const uint8_t list[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3, 0x33, 0xd0, 0x31, 0x32,
		0xe0, 2, 0, 0x0e, 0xb1, 0x9b, 0x95, 5, 0, 0, 0}; /* 0,20 */
	static const struct {
		const char *shard, *beside;
		const void *bytes;
		size_t n;
		const char *keys, *manifest, *what;
	} cases[] = {
		{"d/a.bin", "d/a.idx", idx, sizeof(idx), "",
			"{\"path\":\"a.bin\",\"format\":\"megatron\",\"dtype\":\"u16\",\"tokens\":"
			"20,"
			"\"size\":40" DIGEST "}\n",
			"index"},
		{"d/a.ds", "d/a.ds.index", ends, sizeof(ends), "",
			"{\"path\":\"a.ds\",\"format\":\"datatrove\",\"dtype\":\"u16\",\"tokens\":"
			"20,"
			"\"size\":40" DIGEST "}\n",
			"index"},
		{"d/a.ds", "d/a.ds.loss", mask, sizeof(mask), "",
			"{\"path\":\"a.ds\",\"format\":\"datatrove\",\"dtype\":\"u16\",\"tokens\":"
			"20,"
			"\"size\":40" DIGEST "}\n",
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
		write_file(p, c->beside, c->bytes, c->n);
		write_manifest(p, c->manifest);
		snprintf(dataset, sizeof(dataset), "      - {name: d, path: d%s%s}", c->keys,
			i % 2 ? ", manifest: m.jsonl" : "");
		snprintf(expected, sizeof(expected),
			"its %s is not the file that it was when the shard was listed, by inode, "
			"size or "
			"mtime",
			c->what);
		const struct dataset *d = open_good(
			p, LEN8 "\n    documents: true\n    loss_mask: true\n    eos: 1", dataset)
						  ->dataset;

		assert_string_equal(open_first(p, d), "");
		change(p, c->beside);
		assert_string_equal(open_first(p, d), expected);
		/* Who lists it anew takes it as it is. */
		d = open_good(
			p, LEN8 "\n    documents: true\n    loss_mask: true\n    eos: 1", dataset)
			    ->dataset;
		assert_string_equal(open_first(p, d), "");
		close_catalog(p);
		unlink(in(p, c->shard));
		unlink(in(p, c->beside));
	}
}

/* Its shards are compared with it when they are opened first, and with what was found then ever
 * after. */
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

	assert_true(dataset_same_shard(d, 0, &st, &fault)); /* nobody knows it yet */
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
	assert_string_equal(open_first(p, d), "dtype is u16 in the manifest and u32 in the file, "
					      "as `dtype` of the config has it");

	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":19,\"size\":40" DIGEST "}\n");
	assert_string_equal(open_first(p, open_good(p, LEN8, LISTED)->dataset),
		"tokens is 19 in the manifest and 20 in the file");
	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":20,\"size\":40" DIGEST
			  ",\"sample_tokens\":10}\n");
	assert_string_equal(open_first(p, open_good(p, "seq_len: 9", LISTED)->dataset),
		"sample_tokens is 10 in the manifest and 0 in the file");

	/* The same size, and nothing that flat could tell it by. */
	memcpy(other, llmc, sizeof(other));
	memcpy(other, &magic, sizeof(magic));
	write_file(p, "d/a.bin", other, sizeof(other));
	write_manifest(p, "{\"path\":\"a.bin\"" FLAT ",\"tokens\":1024,\"size\":2048" DIGEST "}\n");
	assert_string_equal(open_first(p, open_good(p, LEN8, LISTED)->dataset),
		"format is flat in the manifest and llmc in the file");
	d = open_good(p, LEN8, "      - {name: d, path: d, manifest: m.jsonl, format: flat}")
		    ->dataset;
	assert_string_equal(open_first(p, d), "");
}

/* ---- streams and catalogs ---- */

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
	assert_null(catalog_open(p->config, &p->fault));
	p->catalog = catalog_open_stream(p->config, "a", &p->fault);
	assert_non_null(p->catalog);
	assert_non_null(catalog_stream(p->catalog, "a"));
	assert_null(catalog_stream(p->catalog, "b"));
	assert_null(catalog_open_stream(p->config, "c", &p->fault));
	snprintf(expected, sizeof(expected),
		"%s/t.yaml:2: streams: none is called c; there are: a, b", p->directory);
	assert_string_equal(p->fault.text, expected);
}

/* A cursor's list has its own order, and may have a dataset that the config no longer has. */
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

/* What only the cursor can tell: each fault has the line of what asked for it. */
static void test_schedule_faults(void **state)
{
	struct place *p = *state;

	make_two(p);
	make(p, "tiny.bin", 2);
	assert_refused(p, LEN8,
		"      - {name: a,\n         path: tiny.bin, weight: 0}\n"
		"      - {name: b, path: b.bin}\n"
		"    schedule:\n      - {at: 1024, weights: {a: 1}}",
		"7: streams.train.datasets[0].path: no shard holds a window: the largest, "
		"tiny.bin, has 1 "
		"tokens, a window is 9 (seq_len 8 + extra 1); must have a longer shard, a smaller "
		"seq_len or "
		"weight 0");
	assert_refused(p, LEN8,
		"      - {name: a, path: a.bin, max_epochs: 1}\n"
		"      - name: b\n        path: b.bin\n        max_epochs: 2",
		"6: streams.train: max_epochs: from position 19456 on no dataset is left to serve: "
		"leave one "
		"of weight above 0 without max_epochs, or use epochs: for a stream that ends");
	assert_refused(p, LEN8,
		TWO "    schedule:\n"
		    "      - {from: 1024, to: 102401024, steps: 19000, weights: {b: 1, a: 1}}",
		"8: streams.train: schedule: 19001 mixes are to come, of 2 datasets, and a cursor "
		"of at most "
		"98304 bytes has no room for that many: take fewer steps");
}

/* Datasets by name, as a cursor with its own list has them. */
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

	/* The cursor has them the other way round, and one that the config no longer has. */
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
	/* The ramp starts from the mix in force: a alone. */
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
		"%s/t.yaml:7: streams.train: dataset b: weight: the schedule gives it some, and "
		"the cursor "
		"does not have it yet; add it first (tokctl cursor add)",
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

/* Besides the names, 64 bytes a shard. (A sanitizer's allocator counts nothing; the plain build
 * does.) */
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

	/* With a manifest, too, which is no more in memory then. */
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
		cmocka_unit_test_setup_teardown(test_vectors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_epochs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sorted_by_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_globs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_literal, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_links, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_missing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_short, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_widths, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_format, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_annotations, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_bounds, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_loss_masks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_foreign, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_same_shard, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_facts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_faults, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_directory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_index_that_comes_and_goes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_files_beside, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_manifest_compared, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_one_stream, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_map, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_faults, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_of_cursor, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_schedule_of_cursor_faults, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_memory, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
