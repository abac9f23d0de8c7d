/*
 * The shards that are open: a table of fixed size, found by (dataset, shard). The least recently
 * used entry is given up first; a file with users never is. Nothing here does I/O: a descriptor of
 * the former owner stays in its entry until whoever opens it anew closes it (closing can hang, too,
 * so it is left to threads that may).
 */
#ifndef TOKEND_FILES_H
#define TOKEND_FILES_H

#include "daemon/catalog/dataset.h"
#include "daemon/io/io.h"
#include "daemon/reader/look.h"

#include <sys/queue.h>

struct read;
struct share;
STAILQ_HEAD(reads, read);

/* Whether it is still the same file, and who waits to learn that: watch.h. */
struct watch {
	struct look look[1 + SHARD_SIDES]; /* its own, then those of its side files */
	unsigned looks;
	bool without_waiting;	 /* a look may be a system call of the data thread */
	bool queued, in_flight;	 /* to be looked at; in the pool */
	bool touched;		 /* the last look found no fault, but a ctime differed */
	uint64_t at;		 /* queued: where bytes are that were just read */
	STAILQ_ENTRY(file) link; /* while queued */
	struct reads ended;	 /* that ended since the last look */
	struct reads held;	 /* that wait for the present one */
	struct io_work work;
};

/* To be closed before a file is opened: left by the entry's former owner, or given up for want of
 * descriptors. */
struct file_before {
	struct shard *shard; /* or NULL */
	int fd;		     /* or -1 */
};

struct file {
	LIST_ENTRY(file) hashed; /* while known */
	TAILQ_ENTRY(file) idle;	 /* while users is 0 */
	const struct dataset *dataset;
	uint64_t number; /* of the shard in the dataset */
	enum { FILE_CLOSED, FILE_OPENING, FILE_OPEN } state;
	bool known;	  /* can be found; a file that failed cannot, and leaves when its last user
			     does */
	bool direct;	  /* opened with O_DIRECT */
	bool nowait;	  /* as in struct io_work */
	bool plain;	  /* its tokens are read from data_at */
	int fd;		  /* in whatever state; -1: none */
	uint64_t data_at; /* of its first token, where it is plain */
	struct shard *shard;  /* decodes where it is not, and has annotations; otherwise NULL */
	unsigned users;	      /* reads that read or wait */
	struct share *share;  /* of the stream that its dataset belongs to */
	unsigned *in_use;     /* counts the entries with users, this one too */
	struct reads waiting; /* for the opening */
	unsigned tries;
	struct io_work work; /* the opening */
	int flags;	     /* of open() */
	struct statx found;
	struct file_before before;
	uint64_t reserved;	/* of the memory for indexes, while this one's is made */
	struct shard *stripped; /* of other files, to be closed before this one's index is made */
	char *path;		/* [PATH_MAX] */
	struct frames *frames;	/* its stream's share of the cache */
	struct fault fault;	/* of the last opening or look; code FAULT_NONE: none */
	struct watch watch;
};

LIST_HEAD(files_chain, file);
TAILQ_HEAD(files_idle, file);

struct files {
	struct file *file;
	unsigned count;
	char *paths;
	struct files_chain *chain;
	unsigned chains;	/* a power of two */
	struct files_idle idle; /* next to be given up first */
};

bool files_init(struct files *files, unsigned count);
void files_free(struct files *files); /* closes all */
uint64_t files_memory(unsigned count);

/*
 * The shard's file with one user more, CLOSED if it was not there. @in_use counts the entries that
 * have users among those that were got with it. NULL if that would be more than @most of them, or
 * if every entry has users.
 */
struct file *files_get(struct files *files, const struct dataset *dataset, uint64_t shard,
	unsigned *in_use, unsigned most);
/* One user less. */
void files_put(struct files *files, struct file *file);
/* Makes @file unknown: the next files_get() of its shard begins anew. */
void files_forget(struct file *file);
/* Takes the index of the file that would be given up next of those that have one. NULL: none. */
struct shard *files_strip(struct files *files);
/* Takes the descriptor, and *@shard, of the file that would be given up next, for want of
 * descriptors. -1: none. */
int files_rob(struct files *files, struct shard **shard);

#endif
