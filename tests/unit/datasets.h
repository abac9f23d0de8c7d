/* Datasets in a directory of a test's own. */
#ifndef TOKEND_TEST_DATASETS_H
#define TOKEND_TEST_DATASETS_H

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
	char directory[96];
	struct config *config;
	struct catalog *catalog;
	struct fault fault;
};

static inline int set_up(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	snprintf(p->directory, sizeof(p->directory), "%s/tokend-dataset-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(p->directory));
	*state = p;
	return 0;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static inline void close_catalog(struct place *p)
{
	catalog_free(p->catalog);
	config_free(p->config);
	p->catalog = NULL;
	p->config = NULL;
}

static inline int tear_down(void **state)
{
	struct place *p = *state;

	close_catalog(p);
	assert_int_equal(nftw(p->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
	free(p);
	return 0;
}

static inline const char *in(const struct place *p, const char *name)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/%s", p->directory, name);
	return path;
}

/* A file of @bytes zeros, with the directories above it. */
static inline void make(const struct place *p, const char *name, uint64_t bytes)
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

static inline void write_file(const struct place *p, const char *name, const void *bytes, size_t n)
{
	make(p, name, 0);
	FILE *file = fopen(in(p, name), "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static inline struct config *load_config(struct place *p)
{
	struct fault fault;
	struct config *config = config_load(in(p, "t.yaml"), &fault);

	if (!config)
		fail_msg("%s", fault.text);
	return config;
}

/* A config whose one stream, "train", has these datasets: one a line from line 6 on. */
static inline bool open_datasets(struct place *p, const char *stream_keys, const char *datasets)
{
	char text[4096];
	int n = snprintf(text, sizeof(text),
		"streams:\n  train:\n    seed: 42\n    %s\n    datasets:\n%s\n", stream_keys,
		datasets);

	close_catalog(p);
	write_file(p, "t.yaml", text, (size_t)n);
	p->config = load_config(p);
	p->catalog = catalog_open(p->config, NULL, &p->fault);
	unlink(in(p, "t.yaml"));
	return p->catalog;
}

static inline const struct stream *open_good(
	struct place *p, const char *stream_keys, const char *datasets)
{
	if (!open_datasets(p, stream_keys, datasets))
		fail_msg("%s", p->fault.text);
	return catalog_stream(p->catalog, "train");
}

/* @expected: all of it, with DIR for the test's directory. */
static inline void assert_refused_whole(
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
static inline void assert_refused(
	struct place *p, const char *stream_keys, const char *datasets, const char *expected)
{
	char whole[8192];

	snprintf(whole, sizeof(whole), "DIR/t.yaml:%s", expected);
	assert_refused_whole(p, stream_keys, datasets, whole);
	/* The field is what the text begins with, and the code says to change the config. */
	assert_int_equal(p->fault.code, FAULT_ARGUMENT);
	assert_memory_equal(p->fault.field, strchr(expected, ' ') + 1, strlen(p->fault.field));
}

#define LEN8 "seq_len: 8" /* windows of 9 tokens */

static inline void assert_shards(const struct dataset *d, const char *const *names, uint64_t n)
{
	assert_int_equal(d->table.shards, n);
	for (uint64_t s = 0; s < n; s++)
		assert_string_equal(dataset_shard_name(d, s), names[s]);
}

#define ASSERT_SHARDS(d, ...)                                                                      \
	assert_shards(d, (const char *const[]){__VA_ARGS__},                                       \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static inline void assert_root(const struct place *p, const struct dataset *d, const char *root)
{
	char expected[4096];

	snprintf(expected, sizeof(expected), "%s%s%s", p->directory, *root ? "/" : "", root);
	assert_string_equal(d->root, expected);
}

static inline struct stat stat_of(const struct place *p, const char *name)
{
	struct stat st;

	assert_int_equal(stat(in(p, name), &st), 0);
	return st;
}

#endif
