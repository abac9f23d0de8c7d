#include "daemon/shard/mds_index.h"

#include "daemon/shard/bytes_object.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/reread.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { SHAPE_MOST = 16 }; /* bytes of a type and a usual shape */

enum { TINY = 1 << 16 }; /* bytes; the xxh64 of smaller shards is checked when they are described */

#define INDEX_MOST (UINT64_C(256) << 20) /* bytes of an index.json: half a million shards */

/* The XXH64 of all of a source. */
static bool hash_bytes(const struct bytes *b, uint64_t *hash, struct fault *fault)
{
	XXH64_state_t state;
	char some[16 * 1024];
	bool fine = true;

	XXH64_reset(&state, 0);
	for (uint64_t at = 0; fine && at < b->size; at += sizeof(some)) {
		size_t n = b->size - at < sizeof(some) ? (size_t)(b->size - at) : sizeof(some);

		fine = bytes_read(b, at, some, n, fault);
		XXH64_update(&state, some, n);
	}
	*hash = XXH64_digest(&state);
	return fine;
}

/*
 * Compares the hash of @b with that in index.json, whose member @data ("zip_data") has it. If they
 * differ, drops the caches of @cached (@b or a source made of it) and reads once more: a bit may
 * have flipped on the way from the disk.
 */
static bool check_bytes(const struct bytes *b, const struct bytes *cached, const char *data,
	uint64_t hash, struct fault *fault)
{
	uint64_t found;

	for (unsigned reading = 1; reading <= 2; reading++) {
		if (!hash_bytes(b, &found, fault))
			return false;
		if (found == hash && reading == 2)
			reread_was_good(b->fd, 0, b->size, fault->text);
		if (found == hash)
			return true;
		fault_set(fault, FAULT_DATA, "",
			"its xxh64 is %016" PRIx64 "; %s.hashes in index.json is %016" PRIx64
			": it is damaged",
			found, data, hash);
		if (reading == 1)
			bytes_forget(cached);
	}
	return false;
}

bool mds_check_hash(const struct bytes *b, uint64_t hash, struct fault *fault)
{
	struct bytes *file = NULL;
	bool opened;

	if (b->objects) {
		opened = bytes_object_open(b->objects, b->path, b->ahead, &file, fault);
	} else {
		file = bytes_open_plain(b->fd, b->path, fault);
		opened = file != NULL;
	}
	bool fine = opened && file && check_bytes(file, b, "zip_data", hash, fault);

	bytes_close(file);
	return fine;
}

/* A shard of an index.json. */
struct entry {
	char *name;    /* of the raw file, relative to the index's directory */
	char *zip;     /* the compressed file's additional ending, ".zstd"; or "" */
	char *columns; /* shared with the previous entry if equal */
	uint64_t number, samples, bytes, raw_hash, zip_bytes, zip_hash;
	bool owns_columns, has_raw_hash, has_hash;
};

/* An index.json. */
struct list {
	struct entry *entry; /* by name */
	uint64_t count, room;
	bool absent;
	const struct objects *objects; /* while it is read */
	size_t directory;	       /* bytes of its path up to its name */
	const char *path;
};

static void list_free(void *made)
{
	struct list *list = made;

	for (uint64_t i = 0; i < list->count; i++) {
		free(list->entry[i].name);
		free(list->entry[i].zip);
		if (list->entry[i].owns_columns)
			free(list->entry[i].columns);
	}
	free(list->entry);
	free(list);
}

/* Accepts NAME and DIRECTORY/NAME, but no path out of the index's directory. */
static bool check_basename(const char *where, const char *name, struct fault *fault)
{
	const char *slash = strchr(name, '/'), *file = slash ? slash + 1 : name;
	char shown[MDS_SHOWN];

	if (!*file || slash == name || strchr(file, '/') || name[0] == '.' || file[0] == '.' ||
		strlen(name) > NAME_MAX)
		return fault_set(fault, FAULT_DATA, "",
			"%sbasename is '%s'; must be a file name, or DIRECTORY/NAME below the "
			"index's own directory",
			where, json_shown(name, shown, sizeof(shown)));
	return true;
}

/* Takes the xxh64 of `hashes`, if there is one. Ignores other hashes. */
static bool take_hash(
	const json_t *data, const char *where, uint64_t *hash, bool *has_hash, struct fault *fault)
{
	const json_t *hashes = json_object_get(data, "hashes"),
		     *xxh64 = json_object_get(hashes, "xxh64");
	const char *text = json_string_value(xxh64);
	char shown[MDS_SHOWN];

	if (hashes && !json_is_null(hashes) && !json_is_object(hashes))
		return fault_set(fault, FAULT_DATA, "", "%shashes is %s; must be an object", where,
			json_kind(hashes));
	if (!xxh64)
		return true;
	if (!text)
		return fault_set(fault, FAULT_DATA, "",
			"%shashes.xxh64 is %s; must be 16 hex digits", where, json_kind(xxh64));
	if (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16)
		return fault_set(fault, FAULT_DATA, "",
			"%shashes.xxh64 is '%s'; must be 16 hex digits", where,
			json_shown(text, shown, sizeof(shown)));
	*hash = strtoull(text, NULL, 16);
	*has_hash = true;
	return true;
}

/* Takes `zip_data`: the compressed file, if there is one. */
static bool take_zip(const json_t *shard, const char *where, struct entry *e, struct fault *fault)
{
	const json_t *zip = json_object_get(shard, "zip_data");
	char inner[64], shown[MDS_SHOWN];
	size_t n = strlen(e->name);

	if (!zip || json_is_null(zip)) {
		e->zip = strdup("");
		return e->zip || fault_memory(fault);
	}
	snprintf(inner, sizeof(inner), "%szip_data.", where);
	if (!json_is_object(zip))
		return fault_set(fault, FAULT_DATA, "",
			"%szip_data is %s; must be an object or null", where, json_kind(zip));
	const char *name = json_string_in(zip, inner, "basename", fault);

	if (!name || !check_basename(inner, name, fault) ||
		!json_number_in(zip, inner, "bytes", INT64_MAX, &e->zip_bytes, fault))
		return false;
	if (strncmp(name, e->name, n) != 0 || name[n] != '.' || strchr(name + n, '/'))
		return fault_set(fault, FAULT_DATA, "",
			"%sbasename is '%s'; must be raw_data.basename and an ending like .zstd",
			inner, json_shown(name, shown, sizeof(shown)));
	e->zip = strdup(name + n);
	if (!e->zip)
		return fault_memory(fault);
	return take_hash(zip, inner, &e->zip_hash, &e->has_hash, fault);
}

static bool take_entry(
	const json_t *shard, const char *where, struct list *list, struct fault *fault)
{
	struct entry *e = &list->entry[list->count];
	const json_t *raw = json_object_get(shard, "raw_data");
	char inner[64];
	const char *name;

	snprintf(inner, sizeof(inner), "%sraw_data.", where);
	if (!mds_check_version(shard, where, fault) || !mds_check_columns(shard, where, fault) ||
		!json_number_in(shard, where, "samples", UINT32_MAX, &e->samples, fault))
		return false;
	if (!json_is_object(raw))
		return fault_set(fault, FAULT_DATA, "", "%sraw_data is %s; must be an object",
			where, json_kind(raw));
	name = json_string_in(raw, inner, "basename", fault);
	if (!name || !check_basename(inner, name, fault) ||
		!json_number_in(raw, inner, "bytes", INT64_MAX, &e->bytes, fault) ||
		!take_hash(raw, inner, &e->raw_hash, &e->has_raw_hash, fault))
		return false;
	e->name = strdup(name);
	e->columns = mds_columns_text(shard);
	e->owns_columns = true;
	list->count++; /* from here on list_free() frees it */
	if (!e->name || !e->columns)
		return fault_memory(fault);
	if (e->number > 0 && strcmp(e->columns, e[-1].columns) == 0) {
		free(e->columns);
		e->columns = e[-1].columns;
		e->owns_columns = false;
	}
	return take_zip(shard, where, e, fault);
}

static bool visit(void *context, uint64_t number, json_t *shard, struct fault *fault)
{
	struct list *list = context;
	char where[32];

	snprintf(where, sizeof(where), "shards[%" PRIu64 "].", number);
	if (!json_is_object(shard))
		return fault_set(fault, FAULT_DATA, "",
			"shards[%" PRIu64 "] is %s; must be an object", number, json_kind(shard));
	if (list->count == list->room) {
		uint64_t room = list->room ? 2 * list->room : 64;
		struct entry *entry = realloc(list->entry, room * sizeof(*entry));

		if (!entry)
			return fault_memory(fault);
		list->entry = entry;
		list->room = room;
	}
	list->entry[list->count] = (struct entry){.number = number};
	return take_entry(shard, where, list, fault);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static bool is_file(const struct list *list, const char *name, const char *ending)
{
	char path[PATH_MAX];
	struct stat st;
	struct object object;
	int n = snprintf(
		path, sizeof(path), "%.*s%s%s", (int)list->directory, list->path, name, ending);

	if (n < 0 || (size_t)n >= sizeof(path))
		return false;
	if (list->objects)
		return list->objects->find(list->objects->context, path, &object);
	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/*
 * Each shard must be listed once, and exist, raw or compressed. A manifest need not have them all.
 */
static bool check_list(const struct list *list, struct fault *fault)
{
	bool all = !list->objects || !list->objects->inspected;
	char shown[MDS_SHOWN];

	for (uint64_t i = 0; i < list->count; i++) {
		const struct entry *e = &list->entry[i];

		if (i > 0 && strcmp(e->name, e[-1].name) == 0)
			return fault_set(fault, FAULT_DATA, "",
				"shards[%" PRIu64 "] and shards[%" PRIu64
				"] are both '%s'; must be listed once",
				e[-1].number < e->number ? e[-1].number : e->number,
				e[-1].number < e->number ? e->number : e[-1].number,
				json_shown(e->name, shown, sizeof(shown)));
		if (all && !is_file(list, e->name, "") && !is_file(list, e->name, e->zip) &&
			!is_file(list, e->name, ".zstd") && !is_file(list, e->name, ".zst"))
			return fault_set(fault, FAULT_DATA, "",
				"shards[%" PRIu64 "] is '%s'%s%s%s, but there is no such file; add "
				"it, or rewrite the index",
				e->number, json_shown(e->name, shown, sizeof(shown)),
				*e->zip ? " (or with " : "", *e->zip ? e->zip : "",
				*e->zip ? ")" : "");
	}
	return true;
}

/* Parses @text, the whole file. */
static bool parse_list(const char *text, size_t n, struct list *list, struct fault *fault)
{
	json_t *rest = NULL;
	bool fine = json_each(text, n, "shards", visit, list, &rest, fault) &&
		    mds_check_two(rest, "", fault);

	json_decref(rest);
	if (!fine)
		return false;
	if (list->count > 0)
		qsort(list->entry, list->count, sizeof(*list->entry), by_name);
	return check_list(list, fault);
}

static bool load_list(const struct bytes *b, struct list *list, struct fault *fault)
{

	if (b->size > INDEX_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"its size is %" PRIu64 " bytes; must be at most %" PRIu64, b->size,
			INDEX_MOST);
	char *text = malloc(b->size + 1);

	if (!text)
		return fault_memory(fault);
	bool fine =
		bytes_read(b, 0, text, b->size, fault) && parse_list(text, b->size, list, fault);

	free(text);
	return fine;
}

/* @context: the first shard that needs it. */
static void *list_read(const void *context, const char *path, struct fault *fault)
{
	const struct bytes *shard = context;

	struct list *list = calloc(1, sizeof(*list));

	if (!list) {
		fault_memory(fault);
		return NULL;
	}
	list->path = path;
	list->objects = shard->objects;
	list->directory = strlen(path) - strlen("index.json");
	struct bytes *b;
	bool there = bytes_open_side(shard, path, &b, fault);

	list->absent = there && !b;
	bool fine = list->absent || (b && load_list(b, list, fault) && bytes_settled(b, fault));

	if (b && !fine)
		fault_prefix(fault, "index.json: ");
	bytes_close(b);
	list->path = NULL; /* both were borrowed */
	list->objects = NULL;
	if (fine)
		return list;
	list_free(list);
	return NULL;
}

/* The shard's name in an index: that of the raw file. */
static bool raw_name(const char *path, char *to, size_t to_bytes)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	return bytes_side_path(name, ".mds", ".mds", to, to_bytes) ||
	       (size_t)snprintf(to, to_bytes, "%s", name) < to_bytes;
}

/*
 * Compares the compressed file's size, if the shard is the one in `zip_data`. open() checks its
 * hash.
 */
static bool check_zip(
	const struct bytes *b, struct mds_front *f, const struct entry *e, struct fault *fault)
{
	struct object object = {0};
	struct stat st = {0};

	if (b->plain || !*e->zip || !bytes_ends_in(b->path, e->zip))
		return true;
	if (b->objects)
		b->objects->find(b->objects->context, b->path, &object);
	else if (fstat(b->fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	uint64_t bytes = b->objects ? object.size : (uint64_t)st.st_size;

	if (bytes != e->zip_bytes)
		return fault_set(fault, FAULT_DATA, "",
			"its size is %" PRIu64 " bytes; index.json: shards[%" PRIu64
			"].zip_data.bytes is %" PRIu64,
			bytes, e->number, e->zip_bytes);
	f->has_hash = e->has_hash;
	f->hash = e->zip_hash;
	return true;
}

static bool check_entry(
	const struct bytes *b, struct mds_front *f, const struct entry *e, struct fault *fault)
{
	char here[100], there[100];

	if (e->samples != f->samples)
		return fault_set(fault, FAULT_DATA, "",
			"number of samples is %" PRIu32 "; index.json: shards[%" PRIu64
			"].samples is %" PRIu64,
			f->samples, e->number, e->samples);
	if (e->bytes != b->size)
		return fault_set(fault, FAULT_DATA, "",
			"%s %" PRIu64 " bytes; index.json: shards[%" PRIu64
			"].raw_data.bytes is %" PRIu64,
			b->plain ? "its size is" : "it decodes to", b->size, e->number, e->bytes);
	if (strcmp(e->columns, f->columns) != 0)
		return fault_set(fault, FAULT_DATA, "",
			"its columns are %s; index.json: those of shards[%" PRIu64 "] are %s",
			json_shown(f->columns, here, sizeof(here)), e->number,
			json_shown(e->columns, there, sizeof(there)));
	/* Large shards are not read for their hash alone. */
	if (e->has_raw_hash && b->size <= TINY && !(b->objects && b->objects->inspected) &&
		!check_bytes(b, b, "raw_data", e->raw_hash, fault))
		return false;
	return check_zip(b, f, e, fault);
}

/*
 * Whether a listed shard has samples of another size than this one, all of whose samples have the
 * size of the first: its length is not that of so many samples after an equal config.
 */
static bool samples_differ(const struct mds_front *f, const struct list *list)
{
	uint64_t stride = f->second - f->first, config = f->first - 8 - 4 * (uint64_t)f->samples;

	if (f->window_tokens == 0 || f->layout.variable != 1 ||
		f->layout.size[f->layout.column] > 0)
		return false;
	/* If its samples are as long as a window, they are windows: spare the walk. */
	for (unsigned width = 1; width <= 8; width *= 2)
		if (stride - 4 - f->layout.fixed - f->window_tokens * width <= SHAPE_MOST)
			return false;
	for (uint64_t i = 0; i < list->count; i++)
		if (list->entry[i].bytes != 8 + config + (4 + stride) * list->entry[i].samples)
			return true;
	return false;
}

/*
 * Compares the shard with @directory/index.json, where it is called @name. *@absent: there is no
 * index.
 */
static bool check_index(const struct bytes *b, struct mds_front *f, struct cache *cache,
	const char *directory, const char *name, bool *absent, struct fault *fault)
{
	char path[PATH_MAX];
	struct entry wanted = {.name = (char *)name};

	if (snprintf(path, sizeof(path), "%sindex.json", directory) >= (int)sizeof(path))
		return fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
	const struct list *list = cache_get(cache, path, list_read, b, list_free, fault);

	if (!list)
		return false;
	*absent = list->absent;
	if (list->absent)
		return true;
	const struct entry *e =
		list->count ? bsearch(&wanted, list->entry, list->count, sizeof(*e), by_name)
			    : NULL;

	f->listed_differ = f->listed_differ || samples_differ(f, list);
	return e ? check_entry(b, f, e, fault)
		 : fault_set(fault, FAULT_DATA, "",
			   "is not among the %" PRIu64
			   " shards of %.200s; move it away, or rewrite the index",
			   list->count, path);
}

/* Whether @directory, which ends in a slash, is @root or below it. */
static bool is_below(const char *directory, const char *root)
{
	size_t n = strlen(root);

	while (n > 0 && root[n - 1] == '/')
		n--;
	return strncmp(directory, root, n) == 0 && directory[n] == '/';
}

/*
 * Checks the index of the shard's directory. Checks that of the parent directory, a merged index,
 * if the parent belongs to the dataset or the directory has no index.
 */
static bool check_indexes(const struct bytes *b, struct mds_front *f, struct cache *cache,
	char *directory, const char *name, struct fault *fault)
{
	size_t n = strlen(directory) - 1; /* without its slash */
	char merged[PATH_MAX];
	bool absent = true;

	if (!check_index(b, f, cache, directory, name, &absent, fault))
		return false;
	while (n > 0 && directory[n - 1] != '/')
		n--;
	if (n == 0) /* the root directory */
		return true;
	snprintf(merged, sizeof(merged), "%s%s", directory + n, name);
	directory[n] = 0;
	return (!absent && !is_below(directory, cache_root(cache))) ||
	       check_index(b, f, cache, directory, merged, &absent, fault);
}

bool mds_check_listed(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault)
{
	char directory[PATH_MAX + 1], name[NAME_MAX + 1];
	const char *slash = strrchr(b->path, '/');

	snprintf(directory, PATH_MAX, "%.*s", slash ? (int)(slash - b->path) : 1,
		slash ? b->path : ".");
	/*
	 * Resolve the path if it is relative or has dots: the names of the directory and its parent
	 * are needed.
	 */
	bool named =
		b->objects || !directory[0] ||
		(directory[0] == '/' && !strstr(directory, "/./") && !strstr(directory, "/../") &&
			!bytes_ends_in(directory, "/.") && !bytes_ends_in(directory, "/.."));
	char *real = named ? strdup(directory) : realpath(directory, NULL);

	if (!real)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	if (!raw_name(b->path, name, sizeof(name)))
		return free(real), fault_set(fault, FAULT_DATA, "", "%s", strerror(ENAMETOOLONG));
	snprintf(directory, sizeof(directory), "%s/", strcmp(real, "/") == 0 ? "" : real);
	free(real);
	struct cache *cache = hint->cache ? hint->cache : cache_new(directory);
	bool fine =
		cache ? check_indexes(b, f, cache, directory, name, fault) : fault_memory(fault);

	if (!hint->cache)
		cache_free(cache);
	return fine;
}
