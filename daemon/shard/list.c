/*
 * One walk serves directories and patterns: a directory is a pattern that matches everything below
 * it. (glob(3) would keep all names twice, and silently skips directories that it cannot read.)
 */
#include "daemon/shard/list.h"

#include "daemon/config/url_text.h"
#include "daemon/shard/foreign.h"
#include "daemon/shard/formats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directories from the root to the current one, to reject a link back to one of them. */
struct inside {
	const struct inside *up;
	dev_t device;
	ino_t inode;
};

struct walk {
	struct shard_list *list;
	char path[PATH_MAX]; /* where the walk is */
	size_t root_bytes;   /* length of the root with its slash, which names do not include */
	struct fault *fault;
};

static bool refuse(struct walk *w, int error)
{
	return fault_errno(w->fault, error, "", "%s: %s", w->path, strerror(error));
}

static bool grow(void **array, size_t *room, size_t needed, size_t item)
{
	size_t more = *room ? *room : 64;

	while (more < needed)
		more += more / 2 + 1;
	if (more == *room)
		return true;
	void *grown = realloc(*array, more * item);

	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

bool shard_list_add_between(struct shard_list *list, const char *before, const char *name,
	const void *after, size_t after_bytes, struct fault *fault)
{
	size_t begin = strlen(before), length = strlen(name) + 1, n = begin + length + after_bytes;
	char *to;

	if (list->bytes + n > UINT32_MAX)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"the names of this dataset's shards exceed 4 GiB in total; use fewer, "
			"larger shards");
	if (!grow((void **)&list->paths, &list->paths_room, list->bytes + n, 1) ||
		!grow((void **)&list->at, &list->at_room, list->count + 1, sizeof(*list->at)))
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

bool shard_list_add(struct shard_list *list, const char *name, struct fault *fault)
{
	return shard_list_add_between(list, "", name, NULL, 0, fault);
}

static bool add_file(struct walk *w)
{
	return shard_list_add(w->list, w->path + w->root_bytes, w->fault) ||
	       fault_prefix(w->fault, "%s: ", w->path);
}

static bool walk_directory(struct walk *w, const char *pattern, const struct inside *up);

/* The rest of @pattern after its first component; NULL if that was the last one. */
static const char *next_part(const char *pattern)
{
	const char *slash = strchr(pattern, '/');

	while (slash && *slash == '/')
		slash++;
	return slash && *slash ? slash : NULL;
}

/*
 * Handles w->path, an entry that matched: adds a file, enters a directory. @pattern is for the
 * entries of the directory.
 */
static bool walk_entry(
	struct walk *w, unsigned char type, bool last, const char *pattern, const struct inside *up)
{
	struct stat st;

	if (type != DT_REG && type != DT_DIR) {
		if (stat(w->path, &st) != 0)
			return refuse(w, errno);
		type = S_ISDIR(st.st_mode)
			       ? DT_DIR
			       : DT_REG; /* other types are rejected when they are described */
	}
	if (type == DT_DIR)
		return walk_directory(w, last ? NULL : pattern, up);
	return last ? add_file(w) : true;
}

static bool entry_matches(const char *name, const char *pattern)
{
	char part[NAME_MAX + 1];

	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return false;
	if (!pattern)
		return name[0] != '.';
	size_t n = strcspn(pattern, "/");

	if (n >= sizeof(part))
		return false;
	memcpy(part, pattern, n);
	part[n] = 0;
	return fnmatch(part, name, FNM_PERIOD | FNM_NOESCAPE) == 0;
}

static bool walk_entries(struct walk *w, DIR *dir, const char *pattern, const struct inside *here)
{
	size_t length = strlen(w->path);
	const char *rest = pattern ? next_part(pattern) : NULL;

	for (;;) {
		errno = 0;
		struct dirent *entry = readdir(dir);

		if (!entry)
			return errno == 0 ? true : refuse(w, errno);
		if (!entry_matches(entry->d_name, pattern))
			continue;
		size_t n = strlen(entry->d_name);
		bool slash = length > 0 && w->path[length - 1] != '/';

		if (length + slash + n >= sizeof(w->path))
			return refuse(w, ENAMETOOLONG);
		if (slash)
			w->path[length] = '/';
		memcpy(w->path + length + slash, entry->d_name, n + 1);
		if (!walk_entry(w, entry->d_type, !rest, rest, here))
			return false;
		w->path[length] = 0;
	}
}

static bool walk_directory(struct walk *w, const char *pattern, const struct inside *up)
{
	DIR *dir = opendir(w->path);
	struct inside here = {.up = up};
	struct stat st;
	bool done = false;

	if (!dir)
		return refuse(w, errno);
	if (fstat(dirfd(dir), &st) != 0) {
		refuse(w, errno);
		goto out;
	}
	here.device = st.st_dev;
	here.inode = st.st_ino;
	for (; up; up = up->up) {
		if (up->device == here.device && up->inode == here.inode) {
			fault_set(w->fault, FAULT_DATA, "",
				"%s: is a link to a directory that contains it; remove the link",
				w->path);
			goto out;
		}
	}
	done = walk_entries(w, dir, pattern, &here);
out:
	closedir(dir);
	return done;
}

static int by_name(const void *a, const void *b, void *paths)
{
	const uint32_t *x = a, *y = b;

	return strcmp((char *)paths + *x, (char *)paths + *y);
}

/* Sets the root to the first @n bytes of @path, and starts the walk there. */
static bool start_at(struct walk *w, const char *path, size_t n)
{
	while (n > 1 && path[n - 1] == '/')
		n--;
	w->list->root = strndup(path, n);
	if (!w->list->root)
		return fault_memory(w->fault);
	memcpy(w->path, path, n);
	w->path[n] = 0;
	w->root_bytes = n + (path[n - 1] != '/');
	return true;
}

static size_t parent_bytes(const char *path, size_t n)
{
	while (n > 1 && path[n - 1] != '/')
		n--;
	return n;
}

static bool walk_path(struct walk *w, const char *path)
{
	size_t wild = strcspn(path, "*?[");
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return start_at(w, path, strlen(path)) && walk_directory(w, NULL, NULL);
	if (stat(path, &st) == 0) {
		if (!start_at(w, path, parent_bytes(path, strlen(path))))
			return false;
		memcpy(w->path, path, strlen(path) + 1);
		w->root_bytes = parent_bytes(path, strlen(path));
		return add_file(w);
	}
	memcpy(w->path, path, strlen(path) + 1);
	if (path[wild] == 0 || errno == EACCES)
		return refuse(w, errno);
	size_t n = parent_bytes(path, wild);

	return start_at(w, path, n) && walk_directory(w, path + n, NULL);
}

/* ---- companions ---- */

/*
 * Whether there is a file called @name with its last @cut bytes replaced by @ending. Unless @raw, a
 * compressed file will do.
 */
static bool has_twin(
	const struct shard_list *list, const char *name, size_t cut, const char *ending, bool raw)
{
	static const char *const packed[] = {"", ".zst", ".zstd"};
	char twin[PATH_MAX];

	for (unsigned i = 0; i < (raw ? 1 : sizeof(packed) / sizeof(packed[0])); i++) {
		int n = snprintf(twin, sizeof(twin), "%.*s%s%s", (int)(strlen(name) - cut), name,
			ending, packed[i]);

		if (n > 0 && (size_t)n < sizeof(twin) && shard_list_find(list, twin) >= 0)
			return true;
	}
	return false;
}

/*
 * Whether there is a file "*.x" in or below the directory of @name; with "../" first, its parent
 * directory. @ending as in shard_companion.shard.
 */
static bool has_sibling(const struct shard_list *list, const char *name, const char *ending)
{
	size_t n = parent_bytes(name, strlen(name));
	uint64_t lo = 0, hi = list->count;

	if (strncmp(ending, "../", 3) == 0) {
		n = parent_bytes(name, n > 1 ? n - 1 : 0);
		ending += 3;
	}
	n = memchr(name, '/', n) ? n : 0; /* a relative name may have no directory */
	while (lo < hi) {		  /* find the directory's first file in the sorted list */
		uint64_t mid = lo + (hi - lo) / 2;

		if (strncmp(shard_list_name(list, mid), name, n) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < list->count && strncmp(shard_list_name(list, lo), name, n) == 0; lo++)
		if (bytes_ending(shard_list_name(list, lo), ending + 1))
			return true;
	return false;
}

/*
 * *@kind: the kind of side file, or NULL if it is a shard. False: the shard that it belongs to is
 * missing.
 */
static bool is_accompanied(
	const struct shard_list *list, const char *name, const struct shard_companion **kind)
{
	const struct shard_companion *c;
	unsigned next = 0;

	*kind = NULL;
	while ((c = shard_companion(name, &next)) != NULL) {
		bool there = strchr(c->shard, '*')
				     ? has_sibling(list, name, c->shard)
				     : has_twin(list, name, strlen(c->ending), c->shard, c->alone);

		/* Without a shard, report the first kind: the commonest. */
		if (there || (!c->alone && !*kind))
			*kind = c;
		if (there)
			return true;
	}
	return *kind == NULL;
}

/* The ending of a shard's name, also of a compressed one. NULL: few shards are named so. */
static const char *shard_ending(const char *name)
{
	static const char *const endings[] = {".bin", ".npy", ".ds", ".arrow", ".mds"};
	static const char *const packed[] = {"", ".zst", ".zstd"};
	char whole[16];

	for (unsigned e = 0; e < sizeof(endings) / sizeof(endings[0]); e++)
		for (unsigned p = 0; p < sizeof(packed) / sizeof(packed[0]); p++) {
			size_t n = (size_t)snprintf(
				whole, sizeof(whole), "%s%s", endings[e], packed[p]);

			if (strlen(name) > n && strcmp(name + strlen(name) - n, whole) == 0)
				return name + strlen(name) - n;
		}
	return NULL;
}

static unsigned depth_of(const char *name)
{
	unsigned depth = 0;

	for (; *name; name++)
		depth += *name == '/';
	return depth;
}

bool shard_list_pattern(
	const struct shard_list *list, const char *other, char *pattern, size_t pattern_bytes)
{
	const char *end = NULL;
	unsigned depth = 0;
	size_t used;

	for (uint64_t i = 0; i < list->count; i++) {
		const char *name = shard_list_name(list, i), *its = shard_ending(name);

		if (!its)
			continue;
		if (!end)
			depth = depth_of(name);
		end = end ? end : its;
		if (strcmp(end, its) != 0 || depth != depth_of(name))
			return false;
	}
	if (!end || (shard_ending(other) && depth == depth_of(other)))
		return false;
	used = (size_t)snprintf(pattern, pattern_bytes, "%s%s", list->root,
		strcmp(list->root, "/") == 0 ? "" : "/");
	for (; depth > 0 && used < pattern_bytes; depth--)
		used += (size_t)snprintf(pattern + used, pattern_bytes - used, "*/");
	if (used < pattern_bytes)
		used += (size_t)snprintf(pattern + used, pattern_bytes - used, "*%s", end);
	return used < pattern_bytes;
}

/* Whether the first file but @name holds something else than tokens. */
static bool others_are_foreign(const struct shard_list *list, const char *name)
{
	const char *first = shard_list_name(list, 0);
	char path[PATH_MAX];
	struct fault fault;
	struct bytes *b = NULL;
	bool foreign = false;

	if (strcmp(first, name) == 0)
		first = shard_list_name(list, 1);
	snprintf(path, sizeof(path), "%s/%s", list->root, first);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0)
		b = bytes_open_plain(fd, path, &fault);
	if (b)
		foreign = foreign_kind(b) || foreign_to_plain(b, SHARD_U16);
	bytes_close(b);
	if (fd >= 0)
		close(fd);
	return foreign;
}

/*
 * A side file without its shard. If it has a fixed name, other loaders may use that too: then the
 * pattern of another file in the list is the remedy.
 */
static void refuse_alone(struct walk *w, const char *name, const struct shard_companion *kind)
{
	const struct shard_list *list = w->list;
	char pattern[PATH_MAX];
	const char *between = strcmp(list->root, "/") == 0 ? "" : "/";

	if (kind->ending[0] == '/' && !url_text_is(list->root) &&
		shard_list_pattern(list, name, pattern, sizeof(pattern)) &&
		!others_are_foreign(list, name)) {
		fault_set(w->fault, FAULT_DATA, "",
			"%s%s%s: is %s, but its shard (%s) is missing; add the shard, or, if the "
			"index is another loader's, set path: \"%s\"",
			list->root, between, name, kind->kind, kind->shard, pattern);
		return;
	}
	fault_set(w->fault, FAULT_DATA, "",
		"%s%s%s: is %s, but its shard (%s) is missing; add the shard, or move this file "
		"away",
		list->root, between, name, kind->kind, kind->shard);
}

/*
 * Moves side files to the end of the list, after its new count. One without its shard is an error:
 * tokens are missing.
 */
static bool split(struct walk *w, uint64_t *sides)
{
	struct shard_list *list = w->list;
	uint64_t kept = 0, n = 0;
	uint32_t *side = malloc((list->count + 1) * sizeof(*side));

	if (!side)
		return fault_memory(w->fault);
	for (uint64_t i = 0; i < list->count; i++) {
		const struct shard_companion *kind;
		const char *name = shard_list_name(list, i);

		if (!is_accompanied(list, name, &kind)) {
			refuse_alone(w, name, kind);
			free(side);
			return false;
		}
		if (kind)
			side[n++] = list->at[i];
	}
	for (uint64_t i = 0, s = 0; i < list->count; i++)
		if (s < n && list->at[i] == side[s])
			s++;
		else
			list->at[kept++] = list->at[i];
	if (n > 0) /* an empty list has no array */
		memcpy(list->at + kept, side, n * sizeof(*side));
	list->count = kept;
	*sides = n;
	free(side);
	return true;
}

/*
 * Rejects a shard that also exists compressed, as after `zstd -k`: its tokens would be served
 * twice.
 */
static bool refuse_twins(struct walk *w)
{
	static const char *const packed[] = {".zst", ".zstd"};
	const struct shard_list *list = w->list;
	char other[PATH_MAX];

	for (uint64_t i = 0; i < list->count; i++)
		for (unsigned e = 0; e < sizeof(packed) / sizeof(packed[0]); e++) {
			const char *name = shard_list_name(list, i);

			if (!bytes_side_path(name, packed[e], "", other, sizeof(other)) ||
				shard_list_find(list, other) < 0)
				continue;
			fault_set(w->fault, FAULT_DATA, "",
				"%s%s%s: exists uncompressed too, as %s, so its tokens would be "
				"served twice; move one of them away, or set a pattern that "
				"matches only one",
				list->root, strcmp(list->root, "/") == 0 ? "" : "/", name, other);
			return false;
		}
	return true;
}

void shard_list_sort(struct shard_list *list)
{
	if (list->count > 1)
		qsort_r(list->at, list->count, sizeof(*list->at), by_name, list->paths);
}

bool shard_list_accompanies(const struct shard_list *list, const char *name)
{
	const struct shard_companion *kind;

	return is_accompanied(list, name, &kind) && kind;
}

static bool sort_out(struct walk *w, uint64_t *sides)
{
	shard_list_sort(w->list);
	return split(w, sides) && refuse_twins(w);
}

bool shard_list_split(struct shard_list *list, uint64_t *sides, struct fault *fault)
{
	struct walk w = {.list = list, .fault = fault};

	return sort_out(&w, sides);
}

void shard_list_trim(struct shard_list *list)
{
	void *paths = realloc(list->paths, list->bytes + 1),
	     *at = realloc(list->at, (list->count + 1) * sizeof(*list->at));

	list->paths = paths ? paths : list->paths;
	list->at = at ? at : list->at;
	list->paths_room = list->bytes + 1;
	list->at_room = list->count + 1;
}

bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault)
{
	struct walk w = {.list = list, .fault = fault};

	*list = (struct shard_list){0};
	if (strlen(path) >= sizeof(w.path)) {
		return fault_errno(
			fault, ENAMETOOLONG, "", "%.40s…: %s", path, strerror(ENAMETOOLONG));
	}
	bool fine = walk_path(&w, path);

	if (fine && list->count > 0)
		fine = sort_out(&w, &(uint64_t){0});
	if (fine)
		shard_list_trim(list);
	else
		shard_list_free(list);
	return fine;
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

bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes)
{
	size_t n = strlen(list->root);
	const char *slash = n > 0 && list->root[n - 1] != '/' ? "/" : "";
	int length = snprintf(
		path, path_bytes, "%s%s%s", list->root, slash, shard_list_name(list, file));

	return length >= 0 && (size_t)length < path_bytes;
}
