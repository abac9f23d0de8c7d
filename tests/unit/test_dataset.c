/*
 * Datasets of files: the meaning of a path, the order of shards, and the exact message of each
 * fault.
 */
#include "tests/unit/datasets.h"

/* ---- the vectors of the order ---- */

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

	/* The cursor at 0 has all of it, and its order is that of the vectors. */
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

/* With epochs a dataset may have no windows: it serves nothing. */
static void test_epochs(void **state)
{
	struct place *p = *state;

	make_vectors(p);
	make(p, "short.bin", 2);
	const struct stream *s =
		open_good(p, "seq_len: 64\n    epochs: 2", "      - {name: web, path: web}\n");

	assert_int_equal(cursor_end(&s->begin), 2 * 1249);
	assert_refused(p, "seq_len: 64\n    epochs: 2",
		"      - {name: web, path: web}\n      - {name: short, path: short.bin}\n",
		"8: streams.train.datasets[1].path: no shard is as long as a window: the largest, "
		"short.bin, has 1 tokens, and a window has 65 (seq_len 64 + extra 1); use longer "
		"shards, a smaller seq_len or no such dataset");
}

/* ---- paths ---- */

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

/* A path that exists is not a pattern, and an absolute path is not relative to the config. */
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
		"6: streams.train.datasets[0].path: DIR/d/dir/back: is a link to a directory that "
		"contains it; remove the link");
	unlink(in(p, "far/deep/back"));
	assert_int_equal(symlink("nowhere", in(p, "d/gone.bin")), 0);
	assert_refused(p, LEN8, "      - {name: d, path: d}",
		"6: streams.train.datasets[0].path: DIR/d/gone.bin: No such file or directory; "
		"must be a readable file, a directory or a pattern");
}

/* ---- faults ---- */

static void test_missing(void **state)
{
	struct place *p = *state;

	assert_refused(p, LEN8, "      - {name: a, path: nix}",
		"6: streams.train.datasets[0].path: DIR/nix: No such file or directory; must be a "
		"readable file, a directory or a pattern");
	assert_refused(p, LEN8, "      - {name: a, path: 'nix/*.bin'}",
		"6: streams.train.datasets[0].path: DIR/nix: No such file or directory; must be a "
		"readable file, a directory or a pattern");
	assert_refused(p, LEN8, "      - {name: a, path: '*.bin'}",
		"6: streams.train.datasets[0].path: DIR/*.bin: no shards found; must have at least "
		"one");
	assert_int_equal(mkdir(in(p, "empty"), 0755), 0);
	assert_refused(p, LEN8, "      - name: a\n        path: empty",
		"7: streams.train.datasets[0].path: DIR/empty: no shards found; must have at least "
		"one");
}

static void test_short(void **state)
{
	struct place *p = *state;

	make(p, "d/a.bin", 2 * 7);
	make(p, "d/b.bin", 2 * 8);
	make(p, "d/c.bin", 0);
	make(p, "e.bin", 2 * 9);
	assert_refused(p, LEN8, "      - {name: e, path: e.bin}\n      - {name: d, path: d}",
		"7: streams.train.datasets[1].path: no shard is as long as a window: the largest, "
		"b.bin, has 8 tokens, and a window has 9 (seq_len 8 + extra 1); use longer shards, "
		"a smaller seq_len or weight 0");
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
	/* The widest dataset sets the stream's width; the other's shards are converted. */
	const struct stream *s = open_good(p, LEN8,
		"      - {name: a, path: a.bin}\n      - {name: b, path: b.bin, dtype: u32}");

	assert_int_equal(s->token_bytes, 4);
	assert_int_equal(s->dataset[0].token_bytes, 4);
	assert_false(dataset_is_plain(&s->dataset[0], 0));
	assert_int_equal(s->dataset[0].table.tokens[0], 20);
	assert_true(dataset_is_plain(&s->dataset[1], 0));
	assert_int_equal(s->dataset[1].table.tokens[0], 10);
	assert_refused(p, LEN8, "      - {name: c, path: c.bin}",
		"6: streams.train.datasets[0].path: DIR/c.bin: 41 bytes is not a multiple of 2 "
		"(dtype u16); the file is truncated: write it again");
	assert_refused(p, LEN8, "      - {name: d, path: d.bin, dtype: u32}",
		"6: streams.train.datasets[0].path: DIR/d.bin: 42 bytes is not a multiple of 4 "
		"(dtype u32); set dtype: u16?");
	assert_refused(p, LEN8 "\n    eos: 65536\n    documents: true",
		"      - {name: a, path: a.bin}",
		"5: streams.train.eos: 65536 does not fit u16, so no document of dataset a would "
		"end; must be at most 65535");
	s = open_good(p, LEN8 "\n    eos: 65536\n    documents: true",
		"      - {name: a, path: a.bin, dtype: u32}");

	assert_int_equal(s->token_bytes, 4);
	assert_int_equal(s->dataset->table.tokens[0], 10);
}

/* The annotations that a stream requests must be available. */
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
		"5: streams.train.documents: the ends of documents in dataset a are unknown: shard "
		"a.bin, of format flat, has no index; set eos, the token that ends a document");
	assert_refused(p, LEN8 "\n    documents: true",
		"      - {name: i, path: i/a.ds}\n      - {name: j, path: i}",
		"5: streams.train.documents: the ends of documents in dataset j are unknown: shard "
		"b.ds, of format datatrove, has no index; set eos, the token that ends a document");
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
		"path: a.bin}");
	assert_true(!s->dataset[0].marked && s->dataset[1].marked && !s->dataset[2].marked);
}

/* A global shuffle over more lists of bounds than are kept gets a remark. */
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
		"shuffle: global takes windows from any of its 501 shards, but only about "
		"500 lists of document bounds (.csv.gz) are kept in memory, so most windows "
		"unpack a whole list; set shuffle: block");
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
		"7: streams.train.datasets[0].path: DIR/i/b.ds: has no loss mask, but the first "
		"shard, a.ds, has one; all shards of a dataset must have one, or none");
	assert_refused(p, LEN8 "\n    loss_mask: true", "      - {name: c, path: c}",
		"7: streams.train.datasets[0].path: DIR/c/b.npy: has a list of document bounds, "
		"but the first shard, a.npy, has none; all shards of a dataset must have one, or "
		"none");
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: i, path: i/a.ds, label_mask: masks}",
		"7: streams.train.datasets[0].path: DIR/i/a.ds: has no loss mask: DIR/masks/a.ds "
		"does not exist; label_mask must have one for each shard of the dataset");
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: d, path: d, label_mask: d/x/}",
		"7: streams.train.datasets[0].label_mask: DIR/d/x/b.npy is in it and also in path; "
		"must be a directory outside path");
	const struct stream *s = open_good(
		p, LEN8 "\n    loss_mask: true", "      - {name: d, path: d, label_mask: masks//}");

	assert_true(s->dataset[0].marked);
	make(p, "masks/x/b.npy", 21);
	assert_refused(p, LEN8 "\n    loss_mask: true",
		"      - {name: d, path: d, label_mask: masks}",
		"7: streams.train.datasets[0].path: DIR/d/x/b.npy: its loss mask b.npy: its size "
		"is 21 bytes; must be 20, one for each token of the shard");
	open_good(p, LEN8, "      - {name: i, path: i}\n      - {name: c, path: c}");
}

static void test_format(void **state)
{
	struct place *p = *state;

	make(p, "a.tokens", 40);
	assert_refused(p, LEN8, "      - {name: a, path: a.tokens}",
		"6: streams.train.datasets[0].path: DIR/a.tokens: has no known format (megatron, "
		"npy, llmc, arrow, datatrove, mds, flat; a flat file's name ends in .bin or .npy); "
		"move it away, or set `format: flat` if it holds plain tokens");
	assert_int_equal(open_good(p, LEN8, "      - {name: a, path: a.tokens, format: flat}")
				 ->dataset->table.tokens[0],
		20);
	assert_refused(p, LEN8, "      - name: a\n        path: a.tokens\n        format: parquet",
		"8: streams.train.datasets[0].format: 'parquet' is unknown; must be auto or one "
		"of: megatron, npy, llmc, arrow, datatrove, mds, flat");
	assert_int_equal(mkfifo(in(p, "pipe.bin"), 0644), 0);
	assert_refused(p, LEN8, "      - {name: a, path: pipe.bin}",
		"6: streams.train.datasets[0].path: DIR/pipe.bin: is not a regular file; a shard "
		"must be one");
}

/* The remedy is a pattern. `format: flat` would serve them as tokens. */
static void test_files_among_shards(void **state)
{
	static const char text[] = "# The shards of web\n\nTokenized by someone else.\n";
	struct place *p = *state;

	make(p, "a/x/1.bin.zst", 40);
	make(p, "a/y/2.bin.zst", 40);
	write_file(p, "a/NOTES.txt", text, sizeof(text) - 1);
	assert_refused(p, LEN8, "      - {name: a, path: a}",
		"6: streams.train.datasets[0].path: DIR/a/NOTES.txt: is text, not a shard of "
		"tokens; to read only the shards, set path: \"DIR/a/*/*.bin.zst\"");
	make(p, "a/y/3.bin", 40); /* a pattern for the others would lose it */
	assert_refused(p, LEN8, "      - {name: a, path: a}",
		"6: streams.train.datasets[0].path: DIR/a/NOTES.txt: is text, not a shard of "
		"tokens; move it away, or set a pattern that matches only the shards");
	make(p, "b/1.bin", 40);
	write_file(p, "b/LICENSE", text, sizeof(text) - 1);
	write_file(p, "b/index.json", "{\"chunks\": []}", 14);
	assert_refused(p, LEN8, "      - {name: b, path: b}",
		"6: streams.train.datasets[0].path: DIR/b/index.json: is a Mosaic index by its "
		"name, but its "
		"shard (*.mds) is missing; add the shard, or, if the index is another loader's, "
		"set path: \"DIR/b/*.bin\"");
	assert_int_equal(
		open_good(p, LEN8, "      - {name: b, path: b/*.bin}")->dataset->table.shards, 1);
	write_file(p, "c/README.bin", text, sizeof(text) - 1);
	make(p, "c/1.bin", 40);
	assert_refused(p, LEN8, "      - {name: c, path: c}",
		"6: streams.train.datasets[0].path: DIR/c/README.bin: is text, not a shard of "
		"tokens; move it away, or set a pattern that matches only the shards");
}

/* Files of foreign formats are not read as tokens under any key. */
static void test_foreign(void **state)
{
	static const struct {
		const char *file, *bytes;
		size_t n;
		const char *kind;
	} files[] = {
		{"p.bin", "\x89PNG\r\n\x1a\n", 8, "a PNG image"},
		{"z.bin", "PK\3\4", 4, "a zip archive (.npz, or torch.save)"},
	};
	struct place *p = *state;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char datasets[128], expected[512], bytes[64] = {0};

		memcpy(bytes, files[i].bytes, files[i].n);
		write_file(p, files[i].file, bytes, sizeof(bytes));
		snprintf(datasets, sizeof(datasets), "      - {name: a, path: %s}", files[i].file);
		snprintf(expected, sizeof(expected),
			"6: streams.train.datasets[0].path: DIR/%s: is %s, not a shard of tokens",
			files[i].file, files[i].kind);
		assert_refused(p, LEN8, datasets, expected);
		snprintf(datasets, sizeof(datasets), "      - {name: a, path: %s, format: flat}",
			files[i].file);
		assert_refused(p, LEN8, datasets, expected);
	}
}

/* ---- replaced shards ---- */

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
		cmocka_unit_test_setup_teardown(test_annotations, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_bounds, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_loss_masks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_format, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_files_among_shards, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_foreign, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_same_shard, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
