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
	char path[PATH_MAX];
	bool absent;
	struct entry *entry; /* by name */
	uint64_t count;
};

struct mds_indexes {
	pthread_mutex_t lock;
	struct index *first;
	size_t root_bytes; /* without slashes at the end */
	char root[];
};

struct mds_indexes *mds_indexes_new(const char *root)
{
	struct mds_indexes *indexes = calloc(1, sizeof(*indexes) + strlen(root) + 1);

	if (!indexes)
		return NULL;
	pthread_mutex_init(&indexes->lock, NULL);
	memcpy(indexes->root, root, strlen(root) + 1);
	indexes->root_bytes = strlen(root);
	while (indexes->root_bytes > 0 && root[indexes->root_bytes - 1] == '/')
		indexes->root_bytes--;
	return indexes;
}

static void index_free(struct index *x)
{
	for (uint64_t i = 0; i < x->count; i++)
		free(x->entry[i].name);
	free(x->entry);
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

/* Whether the entry's file exists, raw or compressed. */
static bool is_there(const struct index *x, const struct objects *objects, const struct entry *e)
{
	static const char *const endings[] = {"", ".zstd", ".zst"};
	int directory = (int)(strlen(x->path) - strlen("index.json"));
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	for (unsigned i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (snprintf(path, sizeof(path), "%.*s%s%s", directory, x->path, e->name,
			    endings[i]) < (int)sizeof(path) &&
			(objects ? objects->find(objects->context, path, &object)
				 : stat(path, &st) == 0 && S_ISREG(st.st_mode)))
			return true;
	return false;
}

/* Takes shard number x->count. */
static bool take_entry(
	struct index *x, json_t *shard, const struct objects *objects, struct fault *fault)
{
	struct entry *e = &x->entry[x->count];
	json_int_t samples, bytes;
	json_error_t error;
	const char *name;
	char shown[80];

	if (json_unpack_ex(shard, &error, 0, "{s:I, s:{s:s, s:I}}", "samples", &samples, "raw_data",
		    "basename", &name, "bytes", &bytes) != 0)
		return fault_set(fault, FAULT_DATA, "", "shards[%" PRIu64 "]: %s", x->count,
			json_shown(error.text, shown, sizeof(shown)));
	*e = (struct entry){strdup(name), x->count, (uint64_t)samples, (uint64_t)bytes};
	if (!e->name)
		return fault_memory(fault);
	x->count++;
	return is_there(x, objects, e) ||
	       fault_set(fault, FAULT_DATA, "",
		       "shards[%" PRIu64
		       "] is '%s', but there is no such file; add it, or rewrite the index",
		       e->number, json_shown(name, shown, sizeof(shown)));
}

static bool parse(struct index *x, const char *text, size_t n, const struct objects *objects,
	struct fault *fault)
{
	json_t *whole = json_object_of(text, n, fault), *shards = json_object_get(whole, "shards");
	size_t count = json_array_size(shards);
	bool fine = whole && (json_is_array(shards) ||
				     fault_set(fault, FAULT_DATA, "",
					     "shards is %s; must be an array", json_kind(shards)));

	x->entry = calloc(count + 1, sizeof(*x->entry));
	if (fine && !x->entry)
		fine = fault_memory(fault);
	for (size_t i = 0; fine && i < count; i++)
		fine = take_entry(x, json_array_get(shards, i), objects, fault);
	json_decref(whole);
	if (fine)
		qsort(x->entry, x->count, sizeof(*x->entry), by_name);
	return fine;
}

static bool load(struct index *x, const struct bytes *file, struct fault *fault)
{
	if (file->size > INDEX_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"its size is %" PRIu64 " bytes; must be at most %" PRIu64, file->size,
			INDEX_MOST);
	char *text = malloc(file->size + 1);
	bool fine = text ? bytes_read(file, 0, text, file->size, fault) &&
				    parse(x, text, file->size, file->objects, fault) &&
				    bytes_settled(file, fault)
			 : fault_memory(fault);

	free(text);
	return fine || fault_prefix(fault, "index.json: ");
}

/*
 * The index in the directory, whose path has @n bytes, read now or for another shard. A failure is
 * not kept. NULL: @fault.
 */
static const struct index *index_in(struct mds_indexes *indexes, const struct bytes *shard,
	const char *directory, size_t n, struct fault *fault)
{
	struct index *x, *new = calloc(1, sizeof(*new));
	struct bytes *file = NULL;

	if (!new) {
		fault_memory(fault);
		return NULL;
	}
	snprintf(new->path, sizeof(new->path), "%.*sindex.json", (int)n, directory);
	pthread_mutex_lock(&indexes->lock);
	for (x = indexes->first; x && strcmp(x->path, new->path) != 0;)
		x = x->next;
	if (!x && bytes_open_side(shard, new->path, &file, fault)) {
		new->absent = !file;
		if (!file || load(new, file, fault)) {
			new->next = indexes->first;
			indexes->first = x = new;
		}
		bytes_close(file);
	}
	pthread_mutex_unlock(&indexes->lock);
	if (x != new)
		index_free(new);
	return x;
}

/* ---- comparing ---- */

/*
 * Checks the shard by the index in its directory, the first @n bytes of its path, or in the parent.
 * *@absent: there is none.
 */
static bool check_index(struct mds_indexes *indexes, const struct bytes *b, const char *path,
	size_t n, uint64_t samples, bool *absent, struct fault *fault)
{
	const struct entry wanted = {.name = (char *)path + n}, *e;
	const struct index *x = index_in(indexes, b, path, n, fault);

	*absent = x && x->absent;
	if (!x || x->absent)
		return x;
	e = bsearch(&wanted, x->entry, x->count, sizeof(wanted), by_name);
	if (!e)
		return fault_set(fault, FAULT_DATA, "",
			"is not among the %" PRIu64
			" shards of %.200s; move it away, or rewrite the index",
			x->count, x->path);
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

/*
 * Writes the absolute path of the raw shard to @to[PATH_MAX]: the names of its directory and of the
 * parent are needed. False: @fault.
 */
static bool raw_path(const struct bytes *b, char *to, struct fault *fault)
{
	const char *slash = strrchr(b->path, '/'), *name = slash ? slash + 1 : b->path;
	const char *end = bytes_ending(b->path, ".mds");
	bool dots = strstr(b->path, "/./") || strstr(b->path, "/../");
	char directory[PATH_MAX] = ".";

	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)(slash - b->path), b->path);
	if (b->objects || (b->path[0] == '/' && !dots))
		memcpy(to, directory, sizeof(directory));
	else if (!realpath(directory, to))
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	size_t n = strlen(to);

	return snprintf(to + n, PATH_MAX - n, "/%.*s", end ? (int)(end - name) + 4 : PATH_MAX,
		       name) < (int)(PATH_MAX - n) ||
	       fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

/* The length of the directory in the first @n bytes of @path, with its slash; 0: there is none. */
static size_t directory_of(const char *path, size_t n)
{
	for (n -= n > 0; n > 0 && path[n - 1] != '/';)
		n--;
	return n;
}

/*
 * Checks the index of the shard's directory. That of the parent, a merged index, which calls the
 * shard DIRECTORY/NAME, is checked too if it belongs to the dataset or is the only one.
 */
bool mds_check_listed(
	const struct bytes *b, const struct shard_hint *hint, uint64_t samples, struct fault *fault)
{
	struct mds_indexes *indexes = hint->indexes ? hint->indexes : mds_indexes_new("");
	char path[PATH_MAX];
	bool fine = indexes ? raw_path(b, path, fault) : fault_memory(fault), absent;

	if (fine) {
		size_t n = directory_of(path, strlen(path)), up = directory_of(path, n),
		       root = indexes->root_bytes;

		fine = check_index(indexes, b, path, n, samples, &absent, fault);
		if (fine && up > 0 &&
			(absent || (root > 0 && up > root && path[root] == '/' &&
					   memcmp(path, indexes->root, root) == 0)))
			fine = check_index(indexes, b, path, up, samples, &absent, fault);
	}
	if (!hint->indexes)
		mds_indexes_free(indexes);
	return fine;
}
