#include "daemon/shard/mds_index.h"

#include "daemon/shard/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_MOST (UINT64_C(64) << 20) /* bytes of an index.json: a hundred thousand shards */

/* A shard of an index.json. */
struct entry {
	char *name; /* of the raw file, relative to the index's directory */
	uint64_t number, samples, bytes;
};

struct index {
	struct index *next;
	char *path;
	bool absent;
	struct entry *entry; /* by name */
	uint64_t count;
};

struct mds_indexes {
	pthread_mutex_t lock;
	struct index *first;
	char root[];
};

struct mds_indexes *mds_indexes_new(const char *root)
{
	struct mds_indexes *indexes = calloc(1, sizeof(*indexes) + strlen(root) + 1);

	if (!indexes)
		return NULL;
	pthread_mutex_init(&indexes->lock, NULL);
	memcpy(indexes->root, root, strlen(root) + 1);
	return indexes;
}

static void index_free(struct index *x)
{
	for (uint64_t i = 0; i < x->count; i++)
		free(x->entry[i].name);
	free(x->entry);
	free(x->path);
	free(x);
}

void mds_indexes_free(struct mds_indexes *indexes)
{
	if (!indexes)
		return;
	for (struct index *x; (x = indexes->first);) {
		indexes->first = x->next;
		index_free(x);
	}
	pthread_mutex_destroy(&indexes->lock);
	free(indexes);
}

/* ---- reading ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static bool is_file(const struct objects *objects, const struct index *x, const char *name)
{
	static const char *const endings[] = {"", ".zstd", ".zst"};
	int directory = (int)(strlen(x->path) - strlen("index.json"));
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	for (unsigned i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
		int n = snprintf(
			path, sizeof(path), "%.*s%s%s", directory, x->path, name, endings[i]);

		if (n < 0 || (size_t)n >= sizeof(path))
			continue;
		if (objects ? objects->find(objects->context, path, &object)
			    : stat(path, &st) == 0 && S_ISREG(st.st_mode))
			return true;
	}
	return false;
}

static bool take_entry(const json_t *shard, struct entry *e, struct fault *fault)
{
	const json_t *raw = json_object_get(shard, "raw_data");
	char where[32], inner[48];

	snprintf(where, sizeof(where), "shards[%" PRIu64 "].", e->number);
	snprintf(inner, sizeof(inner), "%sraw_data.", where);
	const char *name = json_string_in(raw, inner, "basename", fault);

	if (!name || !json_number_in(raw, inner, "bytes", INT64_MAX, &e->bytes, fault) ||
		!json_number_in(shard, where, "samples", UINT32_MAX, &e->samples, fault))
		return false;
	e->name = strdup(name);
	return e->name || fault_memory(fault);
}

/* Each shard must be listed once, and exist, raw or compressed. */
static bool check_entries(const struct index *x, const struct objects *objects, struct fault *fault)
{
	char shown[80];

	for (uint64_t i = 0; i < x->count; i++) {
		const struct entry *e = &x->entry[i];

		if (i > 0 && strcmp(e->name, e[-1].name) == 0)
			return fault_set(fault, FAULT_DATA, "",
				"shards[%" PRIu64 "] and shards[%" PRIu64
				"] are both '%s'; must be listed once",
				e[-1].number, e->number, json_shown(e->name, shown, sizeof(shown)));
		if (!is_file(objects, x, e->name))
			return fault_set(fault, FAULT_DATA, "",
				"shards[%" PRIu64
				"] is '%s', but there is no such file; add it, or rewrite the "
				"index",
				e->number, json_shown(e->name, shown, sizeof(shown)));
	}
	return true;
}

static bool parse(struct index *x, const char *text, size_t n, const struct objects *objects,
	struct fault *fault)
{
	json_t *whole = json_object_of(text, n, fault), *shards = json_object_get(whole, "shards");
	bool fine = whole && (json_is_array(shards) ||
				     fault_set(fault, FAULT_DATA, "",
					     "shards is %s; must be an array", json_kind(shards)));
	size_t count = fine ? json_array_size(shards) : 0;

	x->entry = calloc(count + 1, sizeof(*x->entry));
	if (fine && !x->entry)
		fine = fault_memory(fault);
	for (size_t i = 0; fine && i < count; i++) {
		x->entry[i].number = i;
		fine = take_entry(json_array_get(shards, i), &x->entry[i], fault);
		x->count += fine;
	}
	json_decref(whole);
	if (!fine)
		return false;
	qsort(x->entry, x->count, sizeof(*x->entry), by_name);
	return check_entries(x, objects, fault);
}

static bool load(struct index *x, const struct bytes *file, struct fault *fault)
{
	if (file->size > INDEX_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"its size is %" PRIu64 " bytes; must be at most %" PRIu64, file->size,
			INDEX_MOST);
	char *text = malloc(file->size + 1);

	if (!text)
		return fault_memory(fault);
	bool fine = bytes_read(file, 0, text, file->size, fault) &&
		    parse(x, text, file->size, file->objects, fault) && bytes_settled(file, fault);

	free(text);
	return fine;
}

/* Reads the index at @path, which may be absent. NULL: @fault. */
static struct index *read_index(const struct bytes *shard, const char *path, struct fault *fault)
{
	struct index *x = calloc(1, sizeof(*x));
	struct bytes *file = NULL;

	if (!x || !(x->path = strdup(path))) {
		free(x);
		fault_memory(fault);
		return NULL;
	}
	bool fine = bytes_open_side(shard, path, &file, fault);

	x->absent = !file;
	if (file)
		fine = load(x, file, fault) || fault_prefix(fault, "index.json: ");
	bytes_close(file);
	if (fine)
		return x;
	index_free(x);
	return NULL;
}

/* The index at @path, read now or for another shard. A failure is not kept. NULL: @fault. */
static const struct index *index_at(struct mds_indexes *indexes, const struct bytes *shard,
	const char *path, struct fault *fault)
{
	struct index *x;

	pthread_mutex_lock(&indexes->lock);
	for (x = indexes->first; x && strcmp(x->path, path) != 0;)
		x = x->next;
	if (!x && (x = read_index(shard, path, fault))) {
		x->next = indexes->first;
		indexes->first = x;
	}
	pthread_mutex_unlock(&indexes->lock);
	return x;
}

/* ---- comparing ---- */

static bool compare(
	const struct bytes *b, const struct entry *e, uint64_t samples, struct fault *fault)
{
	if (e->samples != samples)
		return fault_set(fault, FAULT_DATA, "",
			"number of samples is %" PRIu64 "; index.json: shards[%" PRIu64
			"].samples is %" PRIu64,
			samples, e->number, e->samples);
	return e->bytes == b->size ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s %" PRIu64 " bytes; index.json: shards[%" PRIu64
		       "].raw_data.bytes is %" PRIu64,
		       b->plain ? "its size is" : "it decodes to", b->size, e->number, e->bytes);
}

/* The absolute path of the shard's directory, with a slash. The caller frees it. */
static char *directory_of(const struct bytes *b)
{
	const char *slash = strrchr(b->path, '/');
	size_t n = slash ? (size_t)(slash + 1 - b->path) : 0;
	bool dots = strstr(b->path, "/./") || strstr(b->path, "/../");
	char *directory = n > 0 ? strndup(b->path, n) : strdup("./"), *real, *whole = NULL;

	if (!directory || b->objects || (directory[0] == '/' && !dots))
		return directory;
	/* The names of the directory and its parent are needed. */
	real = realpath(directory, NULL);
	free(directory);
	if (real && asprintf(&whole, "%s/", strcmp(real, "/") == 0 ? "" : real) < 0)
		whole = NULL;
	free(real);
	return whole;
}

/* Checks the shard by the index in @directory, where it is called @name. *@absent: there is none.
 */
static bool check_index(struct mds_indexes *indexes, const struct bytes *b, const char *directory,
	const char *name, uint64_t samples, bool *absent, struct fault *fault)
{
	const struct entry wanted = {.name = (char *)name}, *e;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%sindex.json", directory) >= (int)sizeof(path))
		return fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
	const struct index *x = index_at(indexes, b, path, fault);

	if (!x)
		return false;
	*absent = x->absent;
	if (x->absent)
		return true;
	e = x->count ? bsearch(&wanted, x->entry, x->count, sizeof(wanted), by_name) : NULL;
	return e ? compare(b, e, samples, fault)
		 : fault_set(fault, FAULT_DATA, "",
			   "is not among the %" PRIu64
			   " shards of %.200s; move it away, or rewrite the index",
			   x->count, path);
}

/* Whether @directory, which ends in a slash, is the dataset's or below it. */
static bool is_below(const char *directory, const char *root)
{
	size_t n = strlen(root);

	while (n > 0 && root[n - 1] == '/')
		n--;
	return n > 0 && strncmp(directory, root, n) == 0 && directory[n] == '/';
}

/*
 * Checks the index of the shard's @directory. That of the parent, a merged index, which calls the
 * shard DIRECTORY/NAME, is checked too if it belongs to the dataset or is the only one.
 */
static bool check(struct mds_indexes *indexes, const struct bytes *b, char *directory,
	uint64_t samples, struct fault *fault)
{
	const char *slash = strrchr(b->path, '/'), *from = slash ? slash + 1 : b->path;
	const char *end = bytes_ending(b->path, ".mds");
	size_t parent = strlen(directory) - 1; /* without its slash */
	int n = end ? (int)(end - from) + 4 : (int)strlen(from);
	char name[PATH_MAX];
	bool absent;

	while (parent > 0 && directory[parent - 1] != '/')
		parent--;
	const char *below = directory + parent;

	if (snprintf(name, sizeof(name), "%s%.*s", below, n, from) >= (int)sizeof(name))
		return fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
	if (!check_index(indexes, b, directory, name + strlen(below), samples, &absent, fault))
		return false;
	directory[parent] = 0;
	if (parent == 0 || (!absent && !is_below(directory, indexes->root)))
		return true;
	return check_index(indexes, b, directory, name, samples, &absent, fault);
}

bool mds_check_listed(
	const struct bytes *b, const struct shard_hint *hint, uint64_t samples, struct fault *fault)
{
	struct mds_indexes *indexes = hint->indexes ? hint->indexes : mds_indexes_new("");
	char *directory = directory_of(b);
	bool fine;

	if (!indexes || !directory)
		fine = fault_memory(fault);
	else
		fine = check(indexes, b, directory, samples, fault);
	if (!hint->indexes)
		mds_indexes_free(indexes);
	free(directory);
	return fine;
}
