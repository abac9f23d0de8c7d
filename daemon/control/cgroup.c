#include "daemon/control/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT_SHARE = 16 }; /* 1/16 of a limit is kept */

#define KEPT_LEAST (UINT64_C(16) << 20)

struct cgroup {
	char mount[PATH_MAX];
	char inside[PATH_MAX]; /* our group relative to the mount: "" or "/a/b" */
	pthread_mutex_t mutex;
	uint64_t promised;
};

/* The path of our group: of the line "0::PATH". */
static bool own_path(const char *root, char path[PATH_MAX])
{
	char name[PATH_MAX], line[PATH_MAX];
	FILE *file;
	bool found = false;

	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	file = fopen(name, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "0::%4095s", path) == 1;
	if (file)
		fclose(file);
	return found;
}

struct cgroup *cgroup_find(const char *root)
{
	struct cgroup *cgroup = calloc(1, sizeof(*cgroup));
	char stat[2 * PATH_MAX + 64];

	if (!cgroup || !own_path(root, cgroup->inside)) {
		free(cgroup);
		return NULL;
	}
	pthread_mutex_init(&cgroup->mutex, NULL);
	snprintf(cgroup->mount, sizeof(cgroup->mount), "%s/sys/fs/cgroup", root);
	/* In a container, the mount may be our group, and the path of another namespace. */
	snprintf(stat, sizeof(stat), "%s%s/memory.stat", cgroup->mount, cgroup->inside);
	if (strcmp(cgroup->inside, "/") == 0 || strstr(cgroup->inside, "/..") ||
		access(stat, F_OK) < 0)
		cgroup->inside[0] = 0;
	return cgroup;
}

void cgroup_free(struct cgroup *cgroup)
{
	if (cgroup)
		pthread_mutex_destroy(&cgroup->mutex);
	free(cgroup);
}

/* ---- what the groups allow ---- */

/* The number after @key in file @name of a group, or with NULL the first one; @otherwise if there
 * is none, or "max". */
static uint64_t number(const char *directory, const char *name, const char *key, uint64_t otherwise)
{
	char path[2 * PATH_MAX + 64], word[64] = "";
	uint64_t value;
	bool found;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "re");
	if (!file)
		return otherwise;
	do
		found = (!key || fscanf(file, "%63s", word) == 1) &&
			fscanf(file, "%" SCNu64, &value) == 1;
	while (found && key && strcmp(word, key) != 0);
	fclose(file);
	return found ? value : otherwise;
}

static uint64_t kept_of(uint64_t limit)
{
	uint64_t kept = limit / KEPT_SHARE < KEPT_LEAST ? KEPT_LEAST : limit / KEPT_SHARE;

	return kept > limit / 2 ? limit / 2 : kept;
}

/* Lowers @room to what group @inside leaves, if that is less. *@any: a limit was found. */
static void look(const char *mount, const char *inside, struct cgroup_room *room, bool *any)
{
	char directory[2 * PATH_MAX];

	snprintf(directory, sizeof(directory), "%s%s", mount, inside);

	uint64_t most = number(directory, "memory.max", NULL, UINT64_MAX);
	uint64_t high = number(directory, "memory.high", NULL, UINT64_MAX);
	uint64_t limit = high < most ? high : most;

	if (limit == UINT64_MAX)
		return;

	/* Page cache, also of the group's children. */
	uint64_t held = number(directory, "memory.stat", "active_file", 0) +
			number(directory, "memory.stat", "inactive_file", 0);
	uint64_t used = number(directory, "memory.current", NULL, 0);

	used = used > held ? used - held : 0;

	uint64_t kept = kept_of(limit), left = limit > used + kept ? limit - used - kept : 0;

	if (*any && left >= room->left)
		return;
	*any = true;
	*room = (struct cgroup_room){.limit = limit, .used = used, .kept = kept, .left = left};
	snprintf(room->path, sizeof(room->path), "%.*s", (int)sizeof(room->path) - 1,
		inside[0] ? inside : "/");
}

bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room)
{
	char inside[PATH_MAX];
	bool any = false;

	if (!cgroup)
		return false;
	memcpy(inside, cgroup->inside, sizeof(inside));
	look(cgroup->mount, inside, room, &any);
	while (inside[0]) {
		*strrchr(inside, '/') = 0;
		look(cgroup->mount, inside, room, &any);
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
