/*
 * A disk that forgets, for tests of power cuts. Calls of the linked code go to it (calls.h), and
 * nothing touches a real file. The effect of a call lasts only after an fsync() of its file or
 * directory.
 *
 * At a cut, the unsynced contents of a file are as before, as after, a prefix of that, or any
 * mixture of their sectors. Each unsynced change of a directory (create, rename, unlink, mkdir) has
 * happened or not, independently of all others.
 *
 * As on Linux, a failed fsync() takes the data for clean: a later one succeeds without writing
 * them.
 */
#ifndef TEST_DISK_MODEL_H
#define TEST_DISK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	DISK_SECTOR = 512,
	DISK_SECTORS = 8, /* of a long file, which has larger ones */
	DISK_NAME_BYTES = 160,
	DISK_CHANGES = 40,
};

/* Contents. Immutable, shared by disks. */
struct disk_blob {
	unsigned users;
	size_t n;
	uint8_t at[];
};

/* A name in a directory, now and after a power cut that keeps nothing. NULL: no such file. */
struct disk_entry {
	struct disk_entry *next, *copy;
	struct disk_inode *now, *kept;
	char name[];
};

/* A call's effect on a directory: up to two names get another inode, or none (NULL). */
struct disk_change {
	bool lost;    /* a failed fsync() has forgotten it: it may never become durable */
	bool certain; /* made durable after a lost one */
	unsigned names;
	struct disk_entry *entry[2];
	struct disk_inode *to[2];
};

struct disk_inode {
	struct disk_inode *next, *copy;
	struct disk *disk; /* NULL: it was freed */
	unsigned refs;
	uint64_t number;
	bool directory;
	bool failed; /* its fsync() has failed */
	unsigned outcomes;
	struct disk_blob *now, *kept;
	struct disk_entry *entries;
	struct disk_change change[DISK_CHANGES]; /* since the last fsync(), in order */
	unsigned changes;
};

struct disk {
	struct disk_inode *root, *inodes;
	uint64_t numbers; /* of inodes */
	/* A later fsync() of a directory makes durable what a failed one did not. Otherwise a name
	 * is lost if its fsync() fails, and then the call that takes it back. */
	bool names_retried;
	unsigned version; /* how often it has changed */
	unsigned retried; /* writes and fsyncs of files whose fsync() had failed */
};

/* The program's memory for disks, which is zero. Its other memory may be a simulated process's. */
void *disk_memory(size_t n);
void disk_memory_free(void *at);

struct disk *disk_new(void);
struct disk *disk_copy(const struct disk *disk);
void disk_free(struct disk *disk);

/* The number of disks that a power cut may leave, which is at least 2. */
uint64_t disk_outcomes(const struct disk *disk);
/* The power fails. @choose returns a number below @n for each choice; 0: nothing unsynced is kept,
 * 1: everything is. */
void disk_cut(struct disk *disk, unsigned (*choose)(void *context, unsigned n), void *context);

/* The inode at an absolute path, or NULL. */
struct disk_inode *disk_find(const struct disk *disk, const char *path);

/* Where a path leads. */
struct disk_where {
	struct disk_inode *directory;
	char name[DISK_NAME_BYTES];
	struct disk_inode *inode; /* or NULL */
};
/* False with errno: no such directory. */
bool disk_resolve(struct disk_inode *from, const char *path, struct disk_where *where);

struct disk_blob *disk_blob(const void *bytes, size_t n);
void disk_blob_use(struct disk_blob **to, struct disk_blob *blob);

/* A new inode without a name: call disk_put() once it has one. */
struct disk_inode *disk_add_inode(struct disk *disk, bool directory);
struct disk_inode *disk_hold(struct disk_inode *inode);
void disk_put(struct disk_inode *inode);
bool disk_is_empty(const struct disk_inode *directory);
/* The name becomes one of @inode, or of none (NULL). */
void disk_name(const struct disk_where *where, struct disk_inode *inode);
/* In one directory. */
void disk_rename(const struct disk_where *from, const struct disk_where *to);
void disk_sync(struct disk_inode *inode, bool fails);

#endif
