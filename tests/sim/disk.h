/* The inside of a disk. */
#ifndef TOKEND_SIM_DISK_H
#define TOKEND_SIM_DISK_H

#include "tests/sim/world.h"

enum { NAME_BYTES = 160, LOCKS = 64 };

struct inode;

struct entry {
	struct entry *next;
	struct inode *inode;
	char name[NAME_BYTES];
};

struct inode {
	bool dir, poisoned; /* a failed fsync() */
	uint64_t number;
	unsigned refs, mode;
	uint8_t *bytes, *safe;
	size_t n, room, safe_n;
	struct entry *entries, *safe_entries;
};

struct disk {
	struct inode *root;
	struct disk_faults faults;
	struct {
		struct proc *proc; /* NULL: free */
		struct inode *inode;
		off_t at;
		bool write;
	} lock[LOCKS];
};

struct inode *inode_new(bool dir);
void inode_put(struct inode *i);
void inode_sync(struct inode *i);
void entries_free(struct entry **list);
struct inode *entries_find(struct entry *list, const char *name);
bool entries_remove(struct entry **list, const char *name);
void entries_set(struct entry **list, const char *name, struct inode *inode);
bool disk_fails(struct disk *disk, bool writes, int *error);
struct inode *disk_parent(struct inode *at, const char *path, char last[NAME_BYTES]);
struct inode *disk_find(struct inode *at, const char *path);

#endif
