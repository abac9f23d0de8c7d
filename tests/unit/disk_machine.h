/*
 * A machine with a disk in memory, for tests of single calls: each may fail, or something else
 * happens before it. While a disk is mounted, file calls of the linked code go to it. Descriptors
 * of the disk begin at 1000, so others may be used meanwhile.
 */
#ifndef TEST_DISK_MACHINE_H
#define TEST_DISK_MACHINE_H

#include "tests/disk/model.h"

/* A fault in the calls of this thread. */
struct disk_fault {
	unsigned call; /* the number of the call that fails, from 1 on; 0: none */
	int error;
	bool late;	  /* the call has its effect, but reports an error, as NFS may */
	const char *path; /* instead: all calls fail whose path contains this */
	bool met;
	const char *name; /* of that call */
};

extern struct disk_machine {
	struct disk *disk; /* NULL: none is mounted */
	unsigned calls;	   /* made since the mount */
	unsigned random;   /* random numbers drawn */
	const char *call;  /* the name of the present call */
	struct disk_fault fault;
	void (*before)(void *context); /* called before each call, if it is set */
	void *context;
	unsigned open_files; /* now */
} disk_machine;

extern __thread int disk_process; /* that makes this thread's calls */

#endif
