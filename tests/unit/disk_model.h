/*
 * A disk that forgets, for tests of power cuts. While a disk is mounted, the calls of the linked
 * code go to it (disk_calls.c, disk_names.c; --wrap in tests/rules.mk), and nothing touches a real
 * file. The effect of a call lasts only after an fsync() of its file or directory.
 *
 * At a cut, the unsynced contents of a file are as before, as after, a prefix of that, or any
 * mixture of their sectors. Each unsynced change of a directory (create, link, rename, unlink,
 * mkdir) has happened or not, independently of all others.
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
	DISK_INODES = 48,
	DISK_DIRECTORIES = 20,
	DISK_NAMES = 120, /* of all files of a test */
	DISK_CHANGES = 40,
	DISK_LOCKS = 8,
	DISK_ROOT = 0,
};

/* Contents. Immutable, shared by disks. */
struct disk_blob {
	unsigned users;
	size_t n;
	uint8_t at[];
};

/* A call's effect on a directory: up to two names get another inode, or none (-1). */
struct disk_change {
	bool lost; /* a failed fsync() has forgotten it: it may never become durable */
	uint8_t names;
	uint8_t name[2];
	int8_t to[2];
};

struct disk_directory {
	int8_t now[DISK_NAMES], kept[DISK_NAMES]; /* inode of each name, or -1 */
	struct disk_change change[DISK_CHANGES];  /* since the last fsync(), in order */
	bool certain[DISK_CHANGES];		  /* made durable after a lost one */
	unsigned changes;
};

struct disk_inode {
	int8_t directory; /* its index, or -1: a file */
	bool failed;	  /* its fsync() has failed */
	struct disk_blob *now, *kept;
};

struct disk_lock {
	int process;
	int inode;
	int64_t byte;
	bool exclusive;
};

struct disk {
	struct disk_inode inode[DISK_INODES];
	struct disk_directory directory[DISK_DIRECTORIES];
	struct disk_lock lock[DISK_LOCKS];
	unsigned inodes, directories, locks;
	unsigned version; /* how often it has changed */
	unsigned retried; /* writes and fsyncs of files whose fsync() had failed */
};

/* ---- disks ---- */

struct disk *disk_new(void);
struct disk *disk_copy(const struct disk *disk);
void disk_free(struct disk *disk);

/* The number of disks that a power cut may leave, which is at least 2. */
uint64_t disk_outcomes(const struct disk *disk);
/* The disk after a power cut. Outcome 0: nothing unsynced is kept; 1: everything is. */
struct disk *disk_cut(const struct disk *disk, uint64_t outcome);

/* The inode at an absolute path, or -1. */
int disk_find(const struct disk *disk, const char *path);
/* The number of a name, which is added if it is new. */
unsigned disk_name(const char *text);
const char *disk_name_text(unsigned name);
void disk_forget_names(void);

struct disk_blob *disk_blob(const void *bytes, size_t n);
void disk_blob_use(struct disk_blob **to, struct disk_blob *blob);
int disk_add_inode(struct disk *disk, bool directory);
void disk_change(struct disk *disk, struct disk_directory *d, const struct disk_change *change);
void disk_sync(struct disk *disk, struct disk_inode *inode, bool fails);

/* ---- calls ---- */

/* A fault in the calls of this thread. */
struct disk_fault {
	unsigned call; /* the number of the call that fails, from 1 on; 0: none */
	int error;
	bool late;	  /* the call has its effect, but reports an error, as NFS may */
	const char *path; /* instead: all calls fail whose path contains this */
	bool met;
	const char *name; /* of that call */
};

struct disk_machine {
	struct disk *disk; /* NULL: none is mounted */
	unsigned calls;	   /* made since the mount */
	unsigned random;   /* random numbers drawn */
	const char *call;  /* the name of the present call */
	struct disk_fault fault;
	void (*before)(void *context); /* called before each call, if it is set */
	void *context;
	unsigned open_files; /* now */
};

extern struct disk_machine disk_machine;
extern __thread int disk_process; /* that makes this thread's calls */

/* The process ends: its locks do. */
void disk_kill(struct disk *disk, int process);
/* The lines that were logged contain @text. */
bool disk_logged(const char *text);
void disk_forget_log(void);

#endif
