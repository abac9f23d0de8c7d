#include "tests/disk/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* ---- contents and inodes ---- */

struct disk_blob *disk_blob(const void *bytes, size_t n)
{
	struct disk_blob *blob = disk_memory(sizeof(*blob) + n);

	blob->n = n;
	if (n > 0)
		memcpy(blob->at, bytes, n);
	return blob;
}

void disk_blob_use(struct disk_blob **to, struct disk_blob *blob)
{
	struct disk_blob *old = *to;

	if (blob)
		blob->users++;
	*to = blob;
	if (old && --old->users == 0)
		disk_memory_free(old);
}

static struct disk_inode *new_inode(struct disk *disk)
{
	struct disk_inode *inode = disk_memory(sizeof(*inode)), **last = &disk->inodes;

	while (*last)
		last = &(*last)->next;
	*last = inode;
	inode->disk = disk;
	inode->refs = 1;
	return inode;
}

struct disk_inode *disk_add_inode(struct disk *disk, bool directory)
{
	struct disk_inode *inode = new_inode(disk);

	inode->number = ++disk->numbers;
	inode->directory = directory;
	disk_blob_use(&inode->now, disk_blob("", 0));
	disk_blob_use(&inode->kept, inode->now);
	return inode;
}

struct disk_inode *disk_hold(struct disk_inode *inode)
{
	if (inode)
		inode->refs++;
	return inode;
}

static void drop_change(struct disk_change *change)
{
	for (unsigned i = 0; i < change->names; i++)
		disk_put(change->to[i]);
}

void disk_put(struct disk_inode *inode)
{
	if (!inode || --inode->refs > 0)
		return;
	for (unsigned i = 0; i < inode->changes; i++)
		drop_change(&inode->change[i]);
	for (struct disk_entry *e = inode->entries, *next; e; e = next) {
		next = e->next;
		disk_put(e->now);
		disk_put(e->kept);
		disk_memory_free(e);
	}
	disk_blob_use(&inode->now, NULL);
	disk_blob_use(&inode->kept, NULL);
	if (inode->disk) {
		struct disk_inode **at = &inode->disk->inodes;

		while (*at != inode)
			at = &(*at)->next;
		*at = inode->next;
	}
	disk_memory_free(inode);
}

static void refer(struct disk_inode **to, struct disk_inode *inode)
{
	struct disk_inode *old = *to;

	*to = disk_hold(inode);
	disk_put(old);
}

/* ---- directories ---- */

static struct disk_entry *entry_of(const struct disk_inode *directory, const char *name)
{
	struct disk_entry *e = directory->entries;

	while (e && strcmp(e->name, name) != 0)
		e = e->next;
	return e;
}

static struct disk_entry *add_entry(struct disk_inode *directory, const char *name)
{
	struct disk_entry *e = entry_of(directory, name), **last = &directory->entries;

	if (e)
		return e;
	e = disk_memory(sizeof(*e) + strlen(name) + 1);
	strcpy(e->name, name);
	while (*last)
		last = &(*last)->next;
	return *last = e;
}

/* Frees the names of no file. */
static void forget_names(struct disk_inode *directory)
{
	for (struct disk_entry **at = &directory->entries, *e; (e = *at);) {
		if (e->now || e->kept) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		disk_memory_free(e);
	}
}

bool disk_is_empty(const struct disk_inode *directory)
{
	const struct disk_entry *e = directory->entries;

	while (e && !e->now)
		e = e->next;
	return !e;
}

bool disk_resolve(struct disk_inode *from, const char *path, struct disk_where *where)
{
	for (;;) {
		const struct disk_entry *e;
		size_t n;

		path += strspn(path, "/");
		n = strcspn(path, "/");
		if (!from || !from->directory) {
			errno = from ? ENOTDIR : ENOENT;
			return false;
		}
		assert(n < sizeof(where->name));
		memcpy(where->name, path, n);
		where->name[n] = 0;
		where->directory = from;
		e = entry_of(from, where->name);
		if (n > 0 && strcmp(where->name, ".") != 0)
			from = e ? e->now : NULL;
		where->inode = from;
		path += n;
		path += strspn(path, "/");
		if (!*path)
			return true;
	}
}

struct disk_inode *disk_find(const struct disk *disk, const char *path)
{
	struct disk_where where;

	return disk_resolve(disk->root, path, &where) ? where.inode : NULL;
}

/* Folds the changes that are certain, up to the first that is not, into what is kept. */
static void fold(struct disk_inode *d)
{
	unsigned n = 0;

	for (; n < d->changes && d->change[n].certain; n++) {
		for (unsigned i = 0; i < d->change[n].names; i++)
			refer(&d->change[n].entry[i]->kept, d->change[n].to[i]);
		drop_change(&d->change[n]);
	}
	d->changes -= n;
	memmove(d->change, d->change + n, d->changes * sizeof(d->change[0]));
	if (d->changes == 0)
		forget_names(d);
}

static void add_change(struct disk_inode *d, struct disk_change change)
{
	if (d->changes == DISK_CHANGES) { /* the kernel has written it back */
		d->change[0].certain = true;
		fold(d);
	}
	for (unsigned i = 0; i < change.names; i++) {
		disk_hold(change.to[i]);
		refer(&change.entry[i]->now, change.to[i]);
	}
	d->change[d->changes++] = change;
	d->disk->version++;
}

void disk_name(const struct disk_where *where, struct disk_inode *inode)
{
	struct disk_inode *d = where->directory;

	add_change(d, (struct disk_change){
			      .names = 1, .entry = {add_entry(d, where->name)}, .to = {inode}});
}

void disk_rename(const struct disk_where *from, const struct disk_where *to)
{
	struct disk_inode *d = to->directory;

	assert(from->directory == d);
	add_change(d, (struct disk_change){.names = 2,
			      .entry = {add_entry(d, from->name), add_entry(d, to->name)},
			      .to = {NULL, from->inode}});
}

void disk_sync(struct disk_inode *inode, bool fails)
{
	inode->disk->version++;
	if (inode->directory) {
		for (unsigned i = 0; i < inode->changes; i++)
			if (fails)
				inode->change[i].lost |=
					!inode->change[i].certain && !inode->disk->names_retried;
			else
				inode->change[i].certain |= !inode->change[i].lost;
		fold(inode);
		return;
	}
	inode->disk->retried += inode->failed;
	inode->failed |= fails;
	if (!inode->failed)
		disk_blob_use(&inode->kept, inode->now);
}

/* ---- disks ---- */

struct disk *disk_new(void)
{
	struct disk *disk = disk_memory(sizeof(*disk));

	disk->root = disk_add_inode(disk, true);
	return disk;
}

void disk_free(struct disk *disk)
{
	disk_put(disk->root);
	for (struct disk_inode *i = disk->inodes; i; i = i->next)
		i->disk = NULL; /* it is still open */
	disk_memory_free(disk);
}

static struct disk_inode *copy_of(const struct disk_inode *inode)
{
	return inode ? disk_hold(inode->copy) : NULL;
}

static void copy_directory(const struct disk_inode *from)
{
	struct disk_inode *to = from->copy;

	for (struct disk_entry *e = from->entries; e; e = e->next) {
		e->copy = add_entry(to, e->name);
		e->copy->now = copy_of(e->now);
		e->copy->kept = copy_of(e->kept);
	}
	to->changes = from->changes;
	for (unsigned c = 0; c < from->changes; c++) {
		to->change[c] = from->change[c];
		for (unsigned i = 0; i < from->change[c].names; i++) {
			to->change[c].entry[i] = from->change[c].entry[i]->copy;
			to->change[c].to[i] = copy_of(from->change[c].to[i]);
		}
	}
}

/* Each inode has one more reference until the others are known, or ends here. */
static void put_all(struct disk *disk)
{
	for (struct disk_inode *i = disk->inodes, *next; i; i = next) {
		next = i->next;
		disk_put(i);
	}
}

struct disk *disk_copy(const struct disk *disk)
{
	struct disk *copy = disk_memory(sizeof(*copy));

	*copy = *disk;
	copy->inodes = NULL;
	for (struct disk_inode *i = disk->inodes; i; i = i->next) {
		i->copy = new_inode(copy);
		i->copy->number = i->number;
		i->copy->directory = i->directory;
		i->copy->failed = i->failed;
		disk_blob_use(&i->copy->now, i->now);
		disk_blob_use(&i->copy->kept, i->kept);
	}
	for (struct disk_inode *i = disk->inodes; i; i = i->next)
		copy_directory(i);
	copy->root = disk_hold(disk->root->copy);
	put_all(copy);
	return copy;
}

/* ---- power cuts ---- */

static size_t sector_bytes(const struct disk_inode *inode)
{
	size_t sectors = (inode->now->n + DISK_SECTOR - 1) / DISK_SECTOR;

	return DISK_SECTOR * (sectors <= DISK_SECTORS ? 1 : sectors / DISK_SECTORS + 1);
}

static unsigned sectors(const struct disk_inode *inode)
{
	return (unsigned)((inode->now->n + sector_bytes(inode) - 1) / sector_bytes(inode));
}

/* Has the inode a name, or may a power cut give it one? */
static bool has_name(const struct disk_inode *inode)
{
	for (const struct disk_inode *d = inode->disk->inodes; d; d = d->next) {
		for (const struct disk_entry *e = d->entries; e; e = e->next)
			if (e->kept == inode)
				return true;
		for (unsigned c = 0; c < d->changes; c++)
			for (unsigned n = 0; n < d->change[c].names; n++)
				if (d->change[c].to[n] == inode)
					return true;
	}
	return false;
}

/* As before, as after; a mixture of sectors; a prefix that ends at a sector, or in it. */
static unsigned file_outcomes(const struct disk_inode *inode)
{
	unsigned n = sectors(inode);

	if (inode->directory || inode->now == inode->kept || !has_name(inode))
		return 1;
	return 2 + (1U << n) + 2 * n;
}

static struct disk_blob *mixture(const struct disk_inode *inode, unsigned chosen)
{
	struct disk_blob *mixed = disk_blob(inode->now->at, inode->now->n);
	size_t sector = sector_bytes(inode);

	for (size_t at = 0; at < mixed->n; at += sector) {
		size_t n = mixed->n - at < sector ? mixed->n - at : sector;
		size_t old = inode->kept->n <= at ? 0 : inode->kept->n - at;

		if (chosen >> at / sector & 1)
			continue;
		memset(mixed->at + at, 0, n);
		if (old > 0)
			memcpy(mixed->at + at, inode->kept->at + at, old < n ? old : n);
	}
	return mixed;
}

static struct disk_blob *file_after(const struct disk_inode *inode, unsigned outcome)
{
	unsigned n = sectors(inode);

	if (outcome < 2)
		return outcome ? inode->now : inode->kept;
	outcome -= 2;
	if (outcome < 1U << n)
		return mixture(inode, outcome);
	outcome -= 1U << n;

	size_t bytes = outcome / 2 * sector_bytes(inode) + outcome % 2;

	return disk_blob(inode->now->at, bytes < inode->now->n ? bytes : inode->now->n);
}

uint64_t disk_outcomes(const struct disk *disk)
{
	uint64_t n = 1;

	for (const struct disk_inode *i = disk->inodes; i; i = i->next) {
		for (unsigned c = 0; c < i->changes; c++)
			n *= i->change[c].certain ? 1 : 2;
		n *= file_outcomes(i);
	}
	assert(n < UINT64_C(1) << 48);
	return n + 1;
}

void disk_cut(struct disk *disk, unsigned (*choose)(void *context, unsigned n), void *context)
{
	for (struct disk_inode *i = disk->inodes; i; i = i->next) {
		disk_hold(i);
		i->outcomes = file_outcomes(i);
	}
	for (struct disk_inode *d = disk->inodes; d; d = d->next) {
		unsigned n = 0;

		for (unsigned c = 0; c < d->changes; c++)
			if (d->change[c].certain || choose(context, 2))
				d->change[n++] = d->change[c];
			else
				drop_change(&d->change[c]);
		d->changes = n;
		for (unsigned c = 0; c < n; c++)
			d->change[c].certain = true;
		fold(d);
		for (struct disk_entry *e = d->entries; e; e = e->next)
			refer(&e->now, e->kept);
		forget_names(d);
	}
	for (struct disk_inode *i = disk->inodes; i; i = i->next) {
		if (i->outcomes > 1)
			disk_blob_use(&i->now, file_after(i, choose(context, i->outcomes)));
		disk_blob_use(&i->kept, i->now);
		i->failed = false;
	}
	put_all(disk);
}
