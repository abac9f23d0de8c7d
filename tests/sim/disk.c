/*
 * A disk under state_dir. Calls act on what processes see. fsync() of a file keeps its contents,
 * fsync() of a directory its entries. A power cut keeps, drops or tears what was not synced, for
 * each entry and each file by chance.
 */
#include "tests/sim/disk.h"

#include <errno.h>

static uint64_t last_inode = 10, injected_errors;

struct inode *inode_new(bool dir)
{
	struct inode *i = __real_calloc(1, sizeof(*i));

	CHECK(i);
	*i = (struct inode){.dir = dir, .number = ++last_inode, .refs = 1, .mode = 0644};
	return i;
}

void inode_put(struct inode *i)
{
	CHECK(i->refs > 0);
	if (--i->refs > 0)
		return;
	entries_free(&i->entries);
	entries_free(&i->safe_entries);
	__real_free(i->bytes);
	__real_free(i->safe);
	__real_free(i);
}

/* ---- entries of a directory ---- */

void entries_free(struct entry **list)
{
	while (*list) {
		struct entry *e = *list;

		*list = e->next;
		inode_put(e->inode);
		__real_free(e);
	}
}

struct inode *entries_find(struct entry *list, const char *name)
{
	while (list && strcmp(list->name, name) != 0)
		list = list->next;
	return list ? list->inode : NULL;
}

bool entries_remove(struct entry **list, const char *name)
{
	for (; *list; list = &(*list)->next) {
		struct entry *e = *list;

		if (strcmp(e->name, name) != 0)
			continue;
		*list = e->next;
		inode_put(e->inode);
		__real_free(e);
		return true;
	}
	return false;
}

/* Replaces an entry with this name. */
void entries_set(struct entry **list, const char *name, struct inode *inode)
{
	struct entry *e = __real_calloc(1, sizeof(*e));

	CHECK(e && strlen(name) < sizeof(e->name));
	inode->refs++;
	entries_remove(list, name);
	strcpy(e->name, name);
	e->inode = inode;
	while (*list)
		list = &(*list)->next;
	*list = e;
}

static void entries_copy(struct entry **to, struct entry *from)
{
	entries_free(to);
	for (; from; from = from->next)
		entries_set(to, from->name, from->inode);
}

/* ---- durability ---- */

void inode_sync(struct inode *i)
{
	if (i->dir) {
		entries_copy(&i->safe_entries, i->entries);
		return;
	}
	if (i->poisoned)
		return; /* the kernel has dropped the pages that it could not write */
	__real_free(i->safe);
	i->safe = i->n ? __real_malloc(i->n) : NULL;
	i->safe_n = i->n;
	if (i->n)
		memcpy(i->safe, i->bytes, i->n);
}

static bool same(const struct inode *i)
{
	return i->n == i->safe_n && (i->n == 0 || memcmp(i->bytes, i->safe, i->n) == 0);
}

/* Leaves of a file that was not synced its old contents, its new ones, or a mixture. */
static void tear(struct inode *i)
{
	size_t n;

	if (same(i))
		return;
	switch (draw(4)) {
	case 0: /* as it was */
		__real_free(i->bytes);
		i->bytes = i->safe_n ? __real_malloc(i->safe_n) : NULL;
		i->n = i->room = i->safe_n;
		if (i->n)
			memcpy(i->bytes, i->safe, i->n);
		break;
	case 1: /* cut */
		i->n = i->n ? draw(i->n) : 0;
		break;
	case 2: /* its length, but not its bytes */
		n = i->n ? draw(i->n) : 0;
		if (i->n)
			memset(i->bytes + n, 0, i->n - n);
		break;
	default:
		break;
	}
	i->poisoned = false;
	inode_sync(i);
}

static void cut(struct inode *dir)
{
	struct entry *kept = NULL;

	for (struct entry *e = dir->entries; e; e = e->next) {
		struct inode *safe = entries_find(dir->safe_entries, e->name);

		if (safe == e->inode || chance(2))
			entries_set(&kept, e->name, e->inode);
		else if (safe)
			entries_set(&kept, e->name, safe);
		else
			world_say("the power cut loses %s", e->name);
	}
	for (struct entry *e = dir->safe_entries; e; e = e->next)
		if (!entries_find(dir->entries, e->name) && chance(2)) {
			world_say("the power cut brings back %s", e->name);
			entries_set(&kept, e->name, e->inode);
		}
	entries_free(&dir->entries);
	dir->entries = kept;
	inode_sync(dir);
	for (struct entry *e = dir->entries; e; e = e->next)
		if (e->inode->dir)
			cut(e->inode);
		else
			tear(e->inode);
}

void disk_power_cut(struct disk *disk)
{
	cut(disk->root);
}

struct disk *disk_new(void)
{
	struct disk *disk = __real_calloc(1, sizeof(*disk));

	CHECK(disk);
	disk->root = inode_new(true);

	struct inode *var = inode_new(true);

	entries_set(&disk->root->entries, "var", var);
	inode_put(var);
	inode_sync(disk->root);
	return disk;
}

void disk_free(struct disk *disk)
{
	inode_put(disk->root);
	__real_free(disk);
}

struct disk_faults *disk_faults(struct disk *disk)
{
	return &disk->faults;
}

uint64_t disk_injected(void)
{
	return injected_errors;
}

bool disk_fails(struct disk *disk, bool writes, int *error)
{
	if (disk->faults.slow && chance(disk->faults.slow) && fiber_current)
		fiber_sleep((int64_t)draw(chance(10) ? 30 * SECOND : 300 * MILLI));
	if (writes && disk->faults.enospc && chance(disk->faults.enospc))
		*error = ENOSPC;
	else if (disk->faults.eio && chance(disk->faults.eio))
		*error = EIO;
	else
		return false;
	injected_errors++;
	return true;
}

/* ---- paths ---- */

/* Finds the directory of the last part of @path, and that part. NULL: errno. */
struct inode *disk_parent(struct inode *at, const char *path, char last[NAME_BYTES])
{
	for (;;) {
		while (*path == '/')
			path++;

		size_t n = strcspn(path, "/");
		const char *rest = path + n;

		CHECK(n < NAME_BYTES);
		memcpy(last, path, n);
		last[n] = 0;
		while (*rest == '/')
			rest++;
		if (*rest == 0)
			return at;
		at = entries_find(at->entries, last);
		if (!at || !at->dir) {
			errno = at ? ENOTDIR : ENOENT;
			return NULL;
		}
		path = rest;
	}
}

struct inode *disk_find(struct inode *at, const char *path)
{
	char last[NAME_BYTES];
	struct inode *dir = disk_parent(at, path, last), *i;

	if (!dir)
		return NULL;
	i = last[0] == 0 || strcmp(last, ".") == 0 ? dir : entries_find(dir->entries, last);
	if (!i)
		errno = ENOENT;
	return i;
}

ssize_t disk_peek(struct disk *disk, const char *path, void *bytes, size_t capacity)
{
	struct inode *i = disk_find(disk->root, path);

	if (!i || i->dir || i->n > capacity)
		return -1;
	if (i->n)
		memcpy(bytes, i->bytes, i->n);
	return (ssize_t)i->n;
}
