/*
 * One walk serves directories and patterns: a directory is a pattern that matches everything below
 * it. glob(3) would skip directories that it cannot search without an error, and fts(3) would stat
 * every file and hold 300 bytes for it.
 */
#include "daemon/shard/shard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ---- */

bool shard_list_add_between(struct shard_list *list, const char *before, const char *name,
	const void *after, size_t after_bytes, struct fault *fault)
{
	size_t begin = strlen(before), length = strlen(name) + 1, n = begin + length + after_bytes;
	char *to;

	if (list->bytes + n > UINT32_MAX)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"the names of this dataset's shards exceed 4 GiB in total; use fewer, "
			"larger shards");
	if (!bytes_grow((void **)&list->paths, &list->paths_room, list->bytes + n, 1) ||
		!bytes_grow((void **)&list->at, &list->at_room, list->count + 1, sizeof(*list->at)))
		return fault_memory(fault);
	to = list->paths + list->bytes;
	memcpy(to, before, begin);
	memcpy(to + begin, name, length);
	if (after_bytes > 0)
		memcpy(to + begin + length, after, after_bytes);
	list->at[list->count++] = (uint32_t)(list->bytes + begin);
	list->bytes += n;
	return true;
}

static int by_name(const void *a, const void *b, void *paths)
{
	const uint32_t *x = a, *y = b;

	return strcmp((char *)paths + *x, (char *)paths + *y);
}

void shard_list_sort(struct shard_list *list)
{
	if (list->count > 1)
		qsort_r(list->at, list->count, sizeof(*list->at), by_name, list->paths);
}

void shard_list_free(struct shard_list *list)
{
	free(list->root);
	free(list->paths);
	free(list->at);
	*list = (struct shard_list){0};
}

const char *shard_list_name(const struct shard_list *list, uint64_t file)
{
	return list->paths + list->at[file];
}

bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes)
{
	size_t n = strlen(list->root);
	const char *slash = n > 0 && list->root[n - 1] != '/' ? "/" : "";
	int length = snprintf(
		path, path_bytes, "%s%s%s", list->root, slash, shard_list_name(list, file));

	if (length >= 0 && (size_t)length < path_bytes)
		return true;
	path[0] = 0; /* a truncated path might be another file */
	return false;
}

int64_t shard_list_find(const struct shard_list *list, const char *name)
{
	uint64_t lo = 0, hi = list->count;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		int order = strcmp(shard_list_name(list, mid), name);

		if (order == 0)
			return (int64_t)mid;
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

/* ---- the walk ---- */

struct walk {
	struct shard_list *list;
	char path[PATH_MAX]; /* where the walk is */
	size_t root_bytes;   /* length of the root with its slash, which names do not include */
	struct fault *fault;
};

static bool refuse(struct walk *w, int error)
{
	if (error == ELOOP)
		return fault_data(w->fault,
			"%.250s…: a link in it leads to a directory that contains it; remove the "
			"link",
			w->path);
	return fault_errno(w->fault, error, "", "%s: %s", w->path, strerror(error));
}

/* Whether an entry of a directory matches the first @n bytes of @pattern; 0: is not hidden. */
static bool matches(const char *name, const char *pattern, size_t n)
{
	char part[NAME_MAX + 1];

	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || n >= sizeof(part))
		return false;
	memcpy(part, pattern, n);
	part[n] = 0;
	return n == 0 ? name[0] != '.' : fnmatch(part, name, FNM_PERIOD | FNM_NOESCAPE) == 0;
}

static bool walk(struct walk *w, const char *pattern);

/* Adds the entry at w->path, which matched: a file, or what matches @rest below a directory. */
static bool take(struct walk *w, unsigned char type, const char *rest)
{
	struct stat st;

	if (type != DT_REG && type != DT_DIR) {
		if (stat(w->path, &st) != 0)
			return refuse(w, errno);
		/* Other types are rejected when they are described. */
		type = S_ISDIR(st.st_mode) ? DT_DIR : DT_REG;
	}
	if (type == DT_DIR)
		return walk(w, rest);
	return *rest || shard_list_add(w->list, w->path + w->root_bytes, w->fault) ||
	       fault_prefix(w->fault, "%s: ", w->path);
}

/* Adds the files below the directory at w->path that match @pattern; "": all. */
static bool walk(struct walk *w, const char *pattern)
{
	size_t length = strlen(w->path), part = strcspn(pattern, "/");
	const char *rest = pattern + part + strspn(pattern + part, "/");
	const char *slash = w->path[length - 1] == '/' ? "" : "/";
	DIR *dir = opendir(w->path);
	struct dirent *entry;
	bool fine = true;

	if (!dir)
		return refuse(w, errno);
	while (fine && (errno = 0, entry = readdir(dir))) {
		w->list->unfinished |=
			strncmp(entry->d_name, SHARD_UNFINISHED, strlen(SHARD_UNFINISHED)) == 0 &&
			!bytes_ends_in(entry->d_name, ".crc"); /* of Hadoop */
		if (!matches(entry->d_name, pattern, part))
			continue;
		int n = snprintf(
			w->path + length, sizeof(w->path) - length, "%s%s", slash, entry->d_name);

		fine = n < (int)(sizeof(w->path) - length) ? take(w, entry->d_type, rest)
							   : refuse(w, ENAMETOOLONG);
		w->path[length] = 0;
	}
	fine = fine && (errno == 0 || refuse(w, errno));
	closedir(dir);
	return fine;
}

/* A path that exists is not a pattern. */
static bool walk_path(struct walk *w, const char *path)
{
	struct stat st;
	bool there = stat(path, &st) == 0, directory = there && S_ISDIR(st.st_mode);
	size_t all = strlen(path), wild = there ? all : strcspn(path, "*?["),
	       begin = directory ? all : wild, n;

	memcpy(w->path, path, all + 1);
	if (!there && (wild == all || errno == EACCES))
		return refuse(w, errno);
	if (!there && strstr(path, "**"))
		return fault_data(w->fault,
			"%.250s: ** would match one level only; name the directory, which is read "
			"with all below it",
			path);
	while (!directory && begin > 1 && path[begin - 1] != '/')
		begin--;
	for (n = begin; n > 1 && path[n - 1] == '/';)
		n--;
	w->list->root = strndup(path, n);
	if (!w->list->root)
		return fault_memory(w->fault);
	w->root_bytes = there && !directory ? begin : n + (path[n - 1] != '/');
	if (there && !directory)
		return take(w, DT_REG, "");
	w->path[n] = 0;
	return walk(w, path + begin);
}

/* ---- side files ---- */

/* Of all files: which are of kind @c, and which of these have a shard. */
static void mark_kind(const struct shard_list *list, const struct shard_companion *c, uint8_t *is)
{
	bool any = false, shards = false;
	char side[PATH_MAX];

	for (uint64_t i = 0; i < list->count; i++)
		if (side_is(c, shard_list_name(list, i))) {
			any = true;
			is[i] = is[i] == LIST_SIDE ? LIST_SIDE : LIST_ORPHAN;
		}
	for (uint64_t i = 0; any && i < list->count; i++) {
		const char *name = shard_list_name(list, i);

		shards |= bytes_ending(name, c->shard) != NULL;
		for (size_t next = strlen(name) + 1; side_name(c, name, &next, side);) {
			int64_t at = shard_list_find(list, side);

			if (at >= 0)
				is[at] = LIST_SIDE;
		}
	}
	for (uint64_t i = 0; !c->format && shards && i < list->count; i++)
		if (side_is(c, shard_list_name(list, i)))
			is[i] = LIST_SIDE;
}

uint8_t *shard_list_mark(const struct shard_list *list)
{
	uint8_t *is = calloc(list->count + 1, sizeof(*is));

	for (const struct shard_companion *c = shard_companions; is && c->ending; c++)
		mark_kind(list, c, is);
	return is;
}

static bool refuse_orphan(const struct shard_list *list, uint64_t i, struct fault *fault)
{
	const struct shard_companion *c = side_kind(shard_list_name(list, i));
	char path[PATH_MAX];

	shard_list_path(list, i, path, sizeof(path));
	return fault_data(fault,
		"%s: is %s, but its shard (%s) is not among the files of the path; add the shard "
		"or name it, move this file away, or set a pattern that matches only shards",
		path, c->kind, c->shard);
}

/* Moves side files to the end of the list, after its new count. */
static bool move_sides(struct shard_list *list, uint64_t *sides, struct fault *fault)
{
	uint64_t count = list->count, shards = 0;
	uint8_t *is = shard_list_mark(list);
	bool fine = is || fault_memory(fault);

	for (uint64_t i = 0; fine && i < count; i++) {
		uint32_t at = list->at[i];

		fine = is[i] != LIST_ORPHAN || refuse_orphan(list, i, fault);
		if (is[i] == LIST_SIDE)
			continue;
		list->at[i] = list->at[shards];
		list->at[shards++] = at;
	}
	list->count = shards;
	*sides = count - shards;
	free(is);
	return fine;
}

/* ---- what would be served twice ---- */

uint64_t shard_parts(const char *name, size_t *shared, char **after)
{
	const char *digits = NULL, *of = bytes_name(name);

	for (const char *next = of; (next = strstr(next, "-of-")); next++)
		digits = of = next;
	while (digits && digits > name && isdigit((unsigned char)digits[-1]))
		digits--;
	if (digits == of || !digits || !isdigit((unsigned char)of[4]))
		return 0;
	*shared = (size_t)(digits - name);
	return strtoull(of + 4, after, 10);
}

/* Whether the file also exists as @other, uncompressed, as after `zstd -k`, or as .zst. */
static bool is_packed(const struct shard_list *list, const char *name, char other[PATH_MAX])
{
	static const char *const endings[][2] = {{".zst", ""}, {".zstd", ""}, {".zstd", ".zst"}};

	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (bytes_side_path(name, endings[i][0], endings[i][1], other, PATH_MAX) &&
			shard_list_find(list, other) >= 0)
			return true;
	return false;
}

/* Whether neighbours are of a dataset that was saved twice, as 2 and as 4 files: writers do not
 * remove others. */
static bool are_saves(const char *last, const char *name)
{
	char *ending, *after;
	size_t shared, its;
	uint64_t parts = shard_parts(last, &shared, &ending), n = shard_parts(name, &its, &after);

	return n != parts && n > 0 && parts > 0 && its == shared && memcmp(name, last, its) == 0 &&
	       strcmp(after, ending) == 0;
}

/* Hugging Face's datasets writes the result of map() next to the data that it was called on, as
 * cache-HASH.arrow or cache-HASH_00000_of_00008.arrow. Returns a file there that is not of this
 * result, or NULL. @last: the name before, which was looked at. */
static const char *beside_cached(const struct shard_list *list, const char *name, const char *last)
{
	const char *file = bytes_name(name), *other;
	size_t directory = (size_t)(file - name), n = directory + strcspn(file, "_.");

	if (strncmp(file, "cache-", 6) != 0 || !bytes_ends_in(file, ".arrow") ||
		strncmp(name, last, n) == 0)
		return NULL;
	for (uint64_t i = 0; i < list->count; i++) {
		other = shard_list_name(list, i);
		if (bytes_ends_in(other, ".arrow") && strncmp(name, other, directory) == 0 &&
			!strchr(other + directory, '/') && strncmp(name, other, n) != 0)
			return other;
	}
	return NULL;
}

static bool refuse_doubles(const struct shard_list *list, struct fault *fault)
{
	const char *last = "", *name, *with, *why;
	char other[PATH_MAX], path[PATH_MAX];

	for (uint64_t i = 0; i < list->count; i++, last = name) {
		name = shard_list_name(list, i);
		if (is_packed(list, name, other)) {
			why = "exists also as";
			with = other;
		} else if (are_saves(last, name)) {
			why = "is by its name of another save of the dataset than";
			with = last;
		} else if ((with = beside_cached(list, name, last))) {
			why = "is a cached result of Hugging Face's datasets, next to";
		} else {
			continue;
		}
		shard_list_path(list, i, path, sizeof(path));
		return fault_data(fault,
			"%s: %s %s, so its tokens would be served twice; move one of them away, or "
			"set a pattern that matches only one",
			path, why, with);
	}
	return true;
}

bool shard_list_split(struct shard_list *list, uint64_t *sides, struct fault *fault)
{
	shard_list_sort(list);
	return move_sides(list, sides, fault) && refuse_doubles(list, fault);
}

bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault)
{
	struct walk w = {.list = list, .fault = fault};

	*list = (struct shard_list){0};
	if (strlen(path) >= sizeof(w.path))
		return fault_errno(
			fault, ENAMETOOLONG, "", "%.40s…: %s", path, strerror(ENAMETOOLONG));
	bool fine = walk_path(&w, path) && shard_list_split(list, &(uint64_t){0}, fault);

	if (!fine)
		shard_list_free(list);
	return fine;
}
