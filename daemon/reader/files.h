/*
 * The table of open shards, of fixed size, keyed by (dataset, shard). The least recently used entry
 * is evicted first; a file with users never is. Nothing here does I/O: an evicted entry keeps its
 * descriptor until the next opening closes it, because close() may hang and belongs in the pool.
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

/* The looks at a file, and the reads that wait for them: watch.h. */
struct watch {
	struct look look[1 + SHARD_SIDES]; /* of the shard, then of its side files */
	unsigned looks;
	bool without_waiting;	 /* the data thread may look: no system call blocks */
	bool queued, in_flight;	 /* waits for a look; a look is in the pool */
	bool due;		 /* the next look also looks by name, in the pool */
	uint64_t at;		 /* queued: offset of bytes that were just read */
	STAILQ_ENTRY(file) link; /* while queued */
	struct reads ended;	 /* since the last look */
	struct reads held;	 /* waiting for the present look */
	struct io_work work;
	/* The last look found another ctime, and no fault. The pool writes it while the data thread
	 * reads the flags above, which compilers load as one word: not next to them. */
	bool touched;
	bool by_name; /* the present look does */
};

/* Closed before a file is opened: left by the entry's former shard, or taken from another entry
 * because the process is out of descriptors. */
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
	bool stored;	  /* in a store: without a descriptor */
	uint32_t session; /* stored: of its opening, in the store */
	bool held;	  /* its opening is one of its users, so that reads need not wait for it */
	bool known;	  /* files_get() finds it. A file that failed is not known, and is evicted
			     after its last user */
	bool direct;	  /* opened with O_DIRECT */
	unsigned align;	  /* of its offsets and lengths */
	bool nowait;	  /* as in struct io_work */
	bool plain;	  /* its tokens are read from data_at */
	int fd;		  /* in any state; -1: none */
	uint64_t data_at; /* plain: byte offset of its first token */
	struct shard *shard;  /* for decoding and annotations; NULL if it needs neither */
	unsigned users;	      /* reads that use it or wait for it */
	struct share *share;  /* of its dataset's stream */
	unsigned *in_use;     /* the share's count of entries with users */
	struct reads waiting; /* for the opening */
	unsigned tries;
	bool scarce;	     /* no descriptor was left: the opening waits, and tries again */
	struct io_work work; /* the opening */
	int flags;	     /* of open() */
	struct statx found;
	struct file_before before;
	uint64_t reserved;	/* memory for its index, while that is read */
	struct shard *stripped; /* of other files, closed before its own index is read */
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
	struct files_idle idle; /* without users; the next to be evicted is first */
	unsigned in_use;	/* entries with users, of all shares */
};

bool files_init(struct files *files, unsigned count);
void files_free(struct files *files); /* closes all of them; no file may have users */
uint64_t files_memory(unsigned count);

/*
 * Returns the shard's entry with one more user; a new entry is CLOSED. *@in_use counts the entries
 * with users that were requested with it. NULL: it would exceed @most, or all entries have users.
 */
struct file *files_get(struct files *files, const struct dataset *dataset, uint64_t shard,
	unsigned *in_use, unsigned most);
/* The shard's entry, or NULL. */
const struct file *files_known(
	const struct files *files, const struct dataset *dataset, uint64_t shard);
/* Ends one use. */
void files_put(struct files *files, struct file *file);
/* Makes @file unknown: the next files_get() of its shard returns a new entry. */
void files_forget(struct file *file);
/* The same for one without users, whose entry is the next to be used again. */
void files_retire(struct files *files, struct file *file);
/* Takes the index of the next file to be evicted that has one. NULL: none. */
struct shard *files_take_index(struct files *files);
/* Takes the descriptor and the shard, which may be NULL, of the next file to be evicted. The caller
 * closes both. -1: there is none. */
int files_take_descriptor(struct files *files, struct shard **shard);

#endif
