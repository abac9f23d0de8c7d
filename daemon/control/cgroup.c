#include "daemon/control/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LEVELS = 64,	 /* of nested groups */
	KEPT_SHARE = 16, /* 1/16 of a limit is kept */
};

#define KEPT_LEAST (UINT64_C(16) << 20)
#define UNLIMITED  (UINT64_C(1) << 62) /* version 1 writes a number above this for no limit */

struct hierarchy {
	bool two; /* version 2 */
	char mount[PATH_MAX];
	char inside[PATH_MAX]; /* our group relative to the mount: "" or "/a/b" */
};

struct cgroup {
	struct hierarchy hierarchy[2];
	unsigned hierarchies;
	pthread_mutex_t mutex;
	uint64_t promised;
};

/* ---- which groups ---- */

/* Is @word in the comma-separated @list? */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (strncmp(p, word, n) == 0 && (p[n] == 0 || p[n] == ',' || p[n] == '\n'))
			return true;
	return false;
}

/* Our path in the hierarchy: "0::PATH" of version 2, "N:…memory…:PATH" of version 1. */
static bool own_path(const char *root, bool two, char path[PATH_MAX])
{
	char name[PATH_MAX], line[PATH_MAX + 128];
	FILE *file;
	bool found = false;

	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	file = fopen(name, "re");
	while (file && !found && fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':'),
		     *at = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!at)
			continue;
		*at++ = 0;
		at[strcspn(at, "\n")] = 0;
		found = two ? strcmp(line, "0:") == 0 : has_word(controllers + 1, "memory");
		if (found)
			snprintf(path, PATH_MAX, "%.*s", PATH_MAX - 1, at);
	}
	if (file)
		fclose(file);
	return found;
}

/* One line of mountinfo: "… ROOT MOUNT … - TYPE SOURCE OPTIONS". */
static void take_mount(struct cgroup *cgroup, const char *root, char *line)
{
	char at[PATH_MAX], mount[PATH_MAX], type[16], options[512], path[PATH_MAX];
	char *tail = strstr(line, " - ");
	struct hierarchy *h = &cgroup->hierarchy[cgroup->hierarchies];

	if (!tail || cgroup->hierarchies == 2 ||
		sscanf(line, "%*d %*d %*s %4095s %4095s", at, mount) != 2 ||
		sscanf(tail, " - %15s %*s %511s", type, options) != 2)
		return;
	h->two = strcmp(type, "cgroup2") == 0;
	if ((!h->two && (strcmp(type, "cgroup") != 0 || !has_word(options, "memory"))) ||
		!own_path(root, h->two, path))
		return;

	/* A mount may show a part of the hierarchy only. A path outside of it belongs to another
	 * namespace. */
	size_t n = strcmp(at, "/") == 0 ? 0 : strlen(at);
	bool below = strncmp(path, at, n) == 0 && (path[n] == '/' || path[n] == 0) &&
		     !strstr(path, "/..");

	snprintf(h->inside, sizeof(h->inside), "%s",
		below && strcmp(path + n, "/") != 0 ? path + n : "");
	if (snprintf(h->mount, sizeof(h->mount), "%s%s", root, mount) < (int)sizeof(h->mount))
		cgroup->hierarchies++;
}

struct cgroup *cgroup_find(const char *root)
{
	struct cgroup *cgroup = calloc(1, sizeof(*cgroup));
	char name[PATH_MAX], *line = NULL;
	size_t room = 0;
	FILE *file;

	if (!cgroup)
		return NULL;
	pthread_mutex_init(&cgroup->mutex, NULL);
	snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
	file = fopen(name, "re");
	while (file && getline(&line, &room, file) > 0)
		take_mount(cgroup, root, line);
	free(line);
	if (file)
		fclose(file);
	if (cgroup->hierarchies > 0)
		return cgroup;
	cgroup_free(cgroup);
	return NULL;
}

void cgroup_free(struct cgroup *cgroup)
{
	if (!cgroup)
		return;
	pthread_mutex_destroy(&cgroup->mutex);
	free(cgroup);
}

/* ---- what the groups allow ---- */

/* The number in file @name of a group; @otherwise if there is none. */
static uint64_t number(const char *directory, const char *name, uint64_t otherwise)
{
	char path[2 * PATH_MAX + 64];
	uint64_t value;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "re");
	if (!file)
		return otherwise;
	if (fscanf(file, "%" SCNu64, &value) != 1) /* "max" */
		value = otherwise;
	fclose(file);
	return value;
}

/* The page cache of a group and its children, in bytes. */
static uint64_t cache(const char *directory, bool two)
{
	char path[2 * PATH_MAX + 64], key[64];
	uint64_t value, sum = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	file = fopen(path, "re");
	while (file && fscanf(file, "%63s %" SCNu64, key, &value) == 2)
		if (strcmp(key, two ? "active_file" : "total_active_file") == 0 ||
			strcmp(key, two ? "inactive_file" : "total_inactive_file") == 0)
			sum += value;
	if (file)
		fclose(file);
	return sum;
}

static uint64_t limit_of(const char *directory, bool two)
{
	if (!two)
		return number(directory, "memory.limit_in_bytes", UINT64_MAX);

	uint64_t most = number(directory, "memory.max", UINT64_MAX);
	uint64_t high = number(directory, "memory.high", UINT64_MAX);

	return high < most ? high : most;
}

static uint64_t kept_of(uint64_t limit)
{
	uint64_t kept = limit / KEPT_SHARE < KEPT_LEAST ? KEPT_LEAST : limit / KEPT_SHARE;

	return kept > limit / 2 ? limit / 2 : kept;
}

/* Lowers @room to what group @inside leaves, if that is less. @any: a limit was found. */
static void look(const struct hierarchy *h, const char *inside, struct cgroup_room *room, bool *any)
{
	char directory[2 * PATH_MAX];
	uint64_t limit, used, held;

	snprintf(directory, sizeof(directory), "%s%s", h->mount, inside);
	limit = limit_of(directory, h->two);
	if (limit >= UNLIMITED)
		return;
	used = number(directory, h->two ? "memory.current" : "memory.usage_in_bytes", 0);
	held = cache(directory, h->two);
	used = used > held ? used - held : 0;

	uint64_t kept = kept_of(limit), taken = used + kept;
	uint64_t left = limit > taken ? limit - taken : 0;

	if (*any && left >= room->left)
		return;
	*any = true;
	*room = (struct cgroup_room){.limit = limit, .used = used, .kept = kept, .left = left};
	snprintf(room->path, sizeof(room->path), "%.*s", (int)sizeof(room->path) - 1,
		inside[0] ? inside : "/");
}

bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room)
{
	bool any = false;

	for (unsigned i = 0; cgroup && i < cgroup->hierarchies; i++) {
		const struct hierarchy *h = &cgroup->hierarchy[i];
		char inside[PATH_MAX];

		memcpy(inside, h->inside, sizeof(inside));
		for (unsigned level = 0; level < LEVELS; level++) {
			look(h, inside, room, &any);
			if (!inside[0])
				break;
			*strrchr(inside, '/') = 0;
		}
	}
	return any;
}

bool cgroup_promise(struct cgroup *cgroup, uint64_t bytes, bool all, struct cgroup_room *room)
{
	bool fits = true;

	if (!cgroup)
		return true;
	pthread_mutex_lock(&cgroup->mutex);
	if (cgroup_room(cgroup, room)) {
		if (all)
			room->left = room->limit > room->used ? room->limit - room->used : 0;
		room->left = room->left > cgroup->promised ? room->left - cgroup->promised : 0;
		fits = bytes <= room->left;
	}
	cgroup->promised += fits ? bytes : 0;
	pthread_mutex_unlock(&cgroup->mutex);
	return fits;
}

void cgroup_used(struct cgroup *cgroup, uint64_t bytes)
{
	if (!cgroup)
		return;
	pthread_mutex_lock(&cgroup->mutex);
	cgroup->promised -= bytes;
	pthread_mutex_unlock(&cgroup->mutex);
}
