/* The memory that cgroups leave. Limits of version 1 are ignored. */
#include "daemon/control/host.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT_SHARE = 16 }; /* 1/16 of a limit is kept */

#define KEPT_LEAST (UINT64_C(16) << 20)

struct cgroup {
	char path[PATH_MAX]; /* of our group's directory */
	size_t mount;	     /* length of its first part, the root group's */
};

struct cgroup *cgroup_find(const char *root)
{
	struct cgroup *cgroup = calloc(1, sizeof(*cgroup));
	char name[PATH_MAX], line[PATH_MAX], *inside;
	FILE *file;
	bool found = false;

	if (!cgroup)
		return NULL;
	cgroup->mount = (size_t)snprintf(cgroup->path, PATH_MAX / 2, "%s/sys/fs/cgroup", root);
	inside = cgroup->path + cgroup->mount;
	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	file = fopen(name, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "0::%2047[^\n]", inside) == 1;
	if (file)
		fclose(file);
	/* In a container, the mount may be our group, and the path of another namespace. */
	if (strcmp(inside, "/") == 0 || strstr(inside, "/..") || access(cgroup->path, F_OK) < 0)
		inside[0] = 0;
	if (found)
		return cgroup;
	free(cgroup);
	return NULL;
}

/* ---- what the groups allow ---- */

/* The number after @key in file @name of a group, or with NULL the first one; or @otherwise. */
static uint64_t number(const char *group, const char *name, const char *key, uint64_t otherwise)
{
	char path[PATH_MAX + 32], word[64] = "";
	uint64_t value;
	bool found;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", group, name);
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

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

bool cgroup_room(const struct cgroup *cgroup, struct cgroup_room *room)
{
	char group[PATH_MAX];
	bool any = false;

	if (!cgroup)
		return false;
	strcpy(group, cgroup->path);
	for (char *inside = group + cgroup->mount;; *strrchr(inside, '/') = 0) {
		uint64_t most = number(group, "memory.max", NULL, UINT64_MAX);
		uint64_t high = number(group, "memory.high", NULL, UINT64_MAX);
		uint64_t limit = high < most ? high : most, kept = limit / KEPT_SHARE;
		/* Without page cache, also that of the group's children. */
		uint64_t used = less(number(group, "memory.current", NULL, 0),
			number(group, "memory.stat", "active_file", 0) +
				number(group, "memory.stat", "inactive_file", 0));

		kept = kept < KEPT_LEAST ? KEPT_LEAST : kept;
		kept = kept < limit / 2 ? kept : limit / 2;
		if (limit != UINT64_MAX && (!any || less(limit, used + kept) < room->left)) {
			*room = (struct cgroup_room){
				limit, used, kept, less(limit, used + kept), ""};
			snprintf(room->path, sizeof(room->path), "%.*s",
				(int)sizeof(room->path) - 1, inside[0] ? inside : "/");
			any = true;
		}
		if (!inside[0])
			return any;
	}
}
