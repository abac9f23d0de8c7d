#include "tests/unit/disk_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- names and contents ---- */

static char names[DISK_NAMES][96];
static unsigned names_used;

unsigned disk_name(const char *text)
{
	unsigned i = 0;

	while (i < names_used && strcmp(names[i], text) != 0)
		i++;
	if (i == names_used) {
		assert_true(i < DISK_NAMES && strlen(text) < sizeof(names[0]));
		strcpy(names[names_used++], text);
	}
	return i;
}

const char *disk_name_text(unsigned name)
{
	return names[name];
}

void disk_forget_names(void)
{
	names_used = 0;
}

struct disk_blob *disk_blob(const void *bytes, size_t n)
{
	struct disk_blob *blob = malloc(sizeof(*blob) + n);

	assert_non_null(blob);
	blob->users = 0;
	blob->n = n;
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
		free(old);
}

/* ---- disks ---- */

int disk_add_inode(struct disk *disk, bool directory)
{
	struct disk_inode *inode = &disk->inode[disk->inodes];

	assert_true(disk->inodes < DISK_INODES);
	*inode = (struct disk_inode){.directory = -1};
	disk_blob_use(&inode->now, disk_blob("", 0));
	disk_blob_use(&inode->kept, inode->now);
	if (directory) {
		struct disk_directory *d = &disk->directory[disk->directories];

		assert_true(disk->directories < DISK_DIRECTORIES);
		memset(d->now, -1, sizeof(d->now));
		memset(d->kept, -1, sizeof(d->kept));
		inode->directory = (int8_t)disk->directories++;
	}
	return (int)disk->inodes++;
}

struct disk *disk_new(void)
{
	struct disk *disk = calloc(1, sizeof(*disk));

	assert_non_null(disk);
	disk_add_inode(disk, true);
	return disk;
}

struct disk *disk_copy(const struct disk *disk)
{
	struct disk *copy = malloc(sizeof(*copy));

	assert_non_null(copy);
	*copy = *disk;
	for (unsigned i = 0; i < copy->inodes; i++) {
		copy->inode[i].now->users++;
		copy->inode[i].kept->users++;
	}
	return copy;
}

void disk_free(struct disk *disk)
{
	for (unsigned i = 0; i < disk->inodes; i++) {
		disk_blob_use(&disk->inode[i].now, NULL);
		disk_blob_use(&disk->inode[i].kept, NULL);
	}
	free(disk);
}

int disk_find(const struct disk *disk, const char *path)
{
	int at = DISK_ROOT;
	char part[96];

	while (*path) {
		size_t n = strcspn(path, "/");

		assert_true(n < sizeof(part));
		memcpy(part, path, n);
		part[n] = 0;
		path += n + (path[n] == '/');
		if (n == 0 || strcmp(part, ".") == 0)
			continue;
		if (disk->inode[at].directory < 0)
			return -1;
		at = disk->directory[disk->inode[at].directory].now[disk_name(part)];
		if (at < 0)
			return -1;
	}
	return at;
}

static void apply(int8_t entry[DISK_NAMES], const struct disk_change *change)
{
	for (unsigned i = 0; i < change->names; i++)
		entry[change->name[i]] = change->to[i];
}

void disk_change(struct disk *disk, struct disk_directory *d, const struct disk_change *change)
{
	assert_true(d->changes < DISK_CHANGES);
	d->certain[d->changes] = false;
	d->change[d->changes++] = *change;
	apply(d->now, change);
	disk->version++;
}

/* Folds the changes that are certain, up to the first that is not, into what is kept. */
static void fold(struct disk_directory *d)
{
	unsigned n = 0;

	while (n < d->changes && d->certain[n])
		apply(d->kept, &d->change[n++]);
	d->changes -= n;
	memmove(d->change, d->change + n, d->changes * sizeof(d->change[0]));
	memmove(d->certain, d->certain + n, d->changes * sizeof(d->certain[0]));
}

static void sync_directory(struct disk_directory *d, bool fails)
{
	for (unsigned i = 0; i < d->changes; i++)
		if (fails)
			d->change[i].lost |= !d->certain[i];
		else
			d->certain[i] |= !d->change[i].lost;
	fold(d);
}

void disk_sync(struct disk *disk, struct disk_inode *inode, bool fails)
{
	disk->version++;
	if (inode->directory >= 0) {
		sync_directory(&disk->directory[inode->directory], fails);
		return;
	}
	disk->retried += inode->failed;
	inode->failed |= fails;
	if (!inode->failed)
		disk_blob_use(&inode->kept, inode->now);
}

void disk_kill(struct disk *disk, int process)
{
	unsigned n = 0;

	for (unsigned i = 0; i < disk->locks; i++)
		if (disk->lock[i].process != process)
			disk->lock[n++] = disk->lock[i];
	disk->locks = n;
}

/* ---- power cuts ---- */

static unsigned sectors(const struct disk_inode *inode)
{
	return (unsigned)((inode->now->n + DISK_SECTOR - 1) / DISK_SECTOR);
}

/* As before, as after; a mixture of sectors; a prefix that ends at a sector, or in it. */
static unsigned file_outcomes(const struct disk_inode *inode)
{
	unsigned n = sectors(inode);

	if (inode->directory >= 0 || inode->now == inode->kept)
		return 1;
	assert_true(n <= 8);
	return 2 + (1U << n) + 2 * n;
}

static struct disk_blob *mixture(const struct disk_inode *inode, unsigned chosen)
{
	struct disk_blob *mixed = disk_blob(inode->now->at, inode->now->n);

	for (size_t at = 0; at < mixed->n; at += DISK_SECTOR) {
		size_t n = mixed->n - at < DISK_SECTOR ? mixed->n - at : DISK_SECTOR;
		size_t old = inode->kept->n <= at ? 0 : inode->kept->n - at;

		if (chosen >> at / DISK_SECTOR & 1)
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

	size_t bytes = outcome / 2 * DISK_SECTOR + outcome % 2;

	return disk_blob(inode->now->at, bytes < inode->now->n ? bytes : inode->now->n);
}

/* Has the inode a name, or may a power cut give it one? */
static bool has_name(const struct disk *disk, int inode)
{
	for (unsigned i = 0; i < disk->directories; i++) {
		const struct disk_directory *d = &disk->directory[i];

		if (memchr(d->kept, inode, sizeof(d->kept)))
			return true;
		for (unsigned c = 0; c < d->changes; c++)
			for (unsigned n = 0; n < d->change[c].names; n++)
				if (d->change[c].to[n] == inode)
					return true;
	}
	return false;
}

static unsigned outcomes_of(const struct disk *disk, unsigned i)
{
	unsigned n = file_outcomes(&disk->inode[i]);

	return n > 1 && has_name(disk, (int)i) ? n : 1;
}

uint64_t disk_outcomes(const struct disk *disk)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < disk->directories; i++)
		for (unsigned c = 0; c < disk->directory[i].changes; c++)
			n *= disk->directory[i].certain[c] ? 1 : 2;
	for (unsigned i = 0; i < disk->inodes; i++)
		n *= outcomes_of(disk, i);
	assert_true(n < UINT64_C(1) << 48);
	return n + 1;
}

/* The next choice of @n. */
static unsigned take(uint64_t *outcome, bool all, unsigned n)
{
	unsigned taken = (unsigned)(*outcome % n);

	*outcome /= n;
	return all && n > 1 ? 1 : taken;
}

struct disk *disk_cut(const struct disk *disk, uint64_t outcome)
{
	struct disk *after = disk_copy(disk);
	bool all = outcome == 1;

	outcome -= outcome > 0;
	after->locks = 0;
	for (unsigned i = 0; i < after->directories; i++) {
		struct disk_directory *d = &after->directory[i];

		for (unsigned c = 0; c < d->changes; c++)
			if (d->certain[c] || take(&outcome, all, 2))
				apply(d->kept, &d->change[c]);
		memcpy(d->now, d->kept, sizeof(d->now));
		d->changes = 0;
	}
	for (unsigned i = 0; i < after->inodes; i++) {
		struct disk_inode *inode = &after->inode[i];
		unsigned n = outcomes_of(disk, i);

		if (n > 1)
			disk_blob_use(&inode->now, file_after(inode, take(&outcome, all, n)));
		disk_blob_use(&inode->kept, inode->now);
		inode->failed = false;
	}
	return after;
}
