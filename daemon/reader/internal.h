/*
 * The reader, its reads and its open files: private to the reader's files.
 *
 * The data thread owns the reads. A read on the slow path belongs to a thread of the pool until its
 * work is reaped. Both use the table of open files, under its mutex.
 */
#ifndef TOKEND_READER_INTERNAL_H
#define TOKEND_READER_INTERNAL_H

#include "daemon/io/io.h"
#include "daemon/reader/reader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/*
 * An open file, and its state when it was opened. Some writes are not detected: those through a
 * mapping, because the kernel updates the times late; those that a network file system's cache
 * hides; an overwrite in place whose mtime was set back.
 */
struct look {
	int fd; /* borrowed */
	dev_t device;
	ino_t inode;
	off_t size;
	uint64_t id;	  /* bytes_id() */
	bool named;	  /* it had a name */
	const char *what; /* "", or "its index: " and the like: begins the texts of faults */
};

/*
 * A shard that is open, or being opened by a thread of the pool. After that, only `direct`, `due`
 * and what the mutex guards change.
 */
struct file {
	LIST_ENTRY(file) hashed; /* while known */
	TAILQ_ENTRY(file) idle;	 /* while users is 0 */
	const struct dataset *dataset;
	uint64_t number; /* of the shard in the dataset */
	/* Under the mutex: */
	bool open;	/* otherwise a thread is opening it */
	bool known;	/* it is found in the table */
	unsigned users; /* reads; 0: it may be closed */

	int fd; /* -1: it is in a store */
	char *path;
	bool plain;	     /* its tokens are read from data_at */
	uint64_t data_at;    /* plain: byte offset of its first token */
	struct shard *shard; /* for decoding and annotations; NULL if it needs neither */
	unsigned align;	     /* of its offsets and lengths, if it is direct */
	bool nowait;	     /* its file systems can read and look without waiting */
	_Atomic bool direct; /* open with O_DIRECT */
	_Atomic bool due;    /* one read is slow, and also looks by name; the others go on */
	struct look look[3]; /* of the shard, its index and its loss mask */
	unsigned looks;
	uint64_t looked; /* the data thread's turn of the last look */
	bool same;	 /* its outcome */
};

LIST_HEAD(files_chain, file);
TAILQ_HEAD(files_idle, file);

/* The table of open files, keyed by (dataset, shard). */
struct files {
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* an opening has ended, or a read was cancelled */
	struct files_chain *chain;
	unsigned chains;	/* a power of two */
	struct files_idle idle; /* without users; the least recently used is first */
	unsigned count, most;	/* files; beyond `most` only those in use are kept */
	/* Memory of the indexes of open shards; likewise. */
	uint64_t indexes_bytes, indexes_most;
	void (*log)(const char *line);
	_Atomic bool logged; /* that a file system refuses O_DIRECT */
};

enum read_state {
	READ_FREE,    /* → READING, ENDED (what it needs is in memory) or SLOW */
	READ_READING, /* the io reads its bytes → READING (more of them), ENDED or SLOW */
	READ_ENDED,   /* it has its window, and waits for a look at its file → DONE or SLOW */
	READ_SLOW,    /* a thread of the pool does all of it → DONE */
	READ_DONE,    /* ready for reader_reap() → FREE */
};

STAILQ_HEAD(reads, read);

struct read {
	struct io_work work;
	STAILQ_ENTRY(read) link; /* in the list of its state */
	enum read_state state;
	struct reader *reader;
	struct reader_read window; /* as it was queued */
	struct file *file;	   /* that it uses: READING, ENDED */
	char *staging;		   /* the read's own buffer for O_DIRECT, or NULL */
	bool staged;		   /* READING: into its staging */
	uint64_t start;		   /* byte offset of the first byte read; aligned if staged */
	uint64_t have;		   /* bytes read from there on */
	unsigned skip;		   /* of these, bytes before the window */
	struct shard_place place;  /* not staged: of the window; what is read before it: */
	uint8_t header[SHARD_HEADER_MOST];
	bool stored;		/* its dataset is in a store */
	uint64_t number;	/* of the reads that were queued */
	bool by_name;		/* it was passed to the slow path to look by name */
	_Atomic bool cancelled; /* stored: nobody needs it any more */
	_Atomic unsigned ticks; /* since it was queued, or since its last try */
	struct fault fault;	/* code FAULT_NONE: none */
};

struct reader {
	struct io *io;
	struct stores *stores; /* or NULL */
	bool direct;
	unsigned depth; /* local reads; those from stores follow them */
	unsigned reads, in_flight;
	struct read *read; /* [reads] */
	struct reads unused, unused_stored, ended, finished;
	uint64_t queued; /* reads until now */
	uint64_t turn; /* of the data thread: reads that ended in one share a look at their file */
	_Atomic bool closing;
	struct files files;
	unsigned streams;
	struct frames *frames,
		**share;	  /* the cache of frames and [streams] shares of it, or NULL */
	struct reader_hang *hang; /* [streams] as of the last tick */
	char *staging;
	uint64_t staging_each, staging_bytes;
};

static inline uint64_t window_bytes(const struct reader_read *window)
{
	return window->tokens * window->dataset->token_bytes;
}

/* Will nobody use what it reads? Any thread. */
static inline bool read_is_over(const struct read *read)
{
	return atomic_load(&read->cancelled) ||
	       (read->stored && atomic_load(&read->reader->closing));
}

/* ---- files.c ---- */

bool files_init(struct files *files, unsigned most, uint64_t indexes_most);
void files_free(struct files *files); /* closes all of them; none may have users */
/* The open file of the shard, with one more user. NULL: it is not open. */
struct file *files_get(struct files *files, const struct dataset *dataset, uint64_t shard);
void files_put(struct files *files, struct file *file);
/* The same, but opens it if it is not open, or waits for the thread that does. NULL: read->fault.
 * Blocks: for the pool. */
struct file *files_open(struct reader *reader, struct read *read);
/* Once a second: each file is due to be looked for by its name. */
void files_tick(struct files *files);
/* The next read of its shard opens it again. */
void files_forget(struct files *files, struct file *file);
/* From now on reads @file through the page cache; logs that once. */
void files_buffer(struct files *files, struct file *file);

/* ---- fast.c: the data thread, without waiting ---- */

/* Begins a local read if its file is open and needs no thread. False: it needs the slow path. */
bool fast_begin(struct reader *reader, struct read *read);
/* Looks at the files of all ENDED reads, and ends those. */
void fast_look(struct reader *reader);
/* Passes the read to a thread of the pool. */
void fast_give_up(struct reader *reader, struct read *read);

/* ---- slow.c: threads of the pool ---- */

/* Does all of a read: opens its shard, reads or decodes its window, checks and annotates it, and
 * looks at its file. For io_work.call. Returns 0, or -1 with read->fault. */
int64_t slow_read(struct io_work *work);
struct read *read_of(struct io_work *work);

/* ---- look.c ---- */

void look_begin(struct look *look, int fd, const char *what, const struct stat *found);
/* Is the file, and are its side files, as when they were opened? One fstat() each. False: @fault,
 * with FAULT_CHANGED, or of a system call that failed. */
bool look_again(const struct file *file, struct fault *fault);
/* Does the shard's name still lead to the open file? The file itself is unchanged if another one
 * was moved to its name, or its directory. */
bool look_by_name(const struct file *file, struct fault *fault);

/* ---- annotations.c ---- */

/* Are all of the window's tokens allowed? The client may write to the slot meanwhile, so an id that
 * is refused here is only a suspicion. Then the slow path reads the tokens into memory that no
 * client can write to, and only that check counts. No I/O. */
bool tokens_pass(const struct reader_read *window);
/* Do annotations of this shard's windows come from files? Not all shards of a `marked` dataset have
 * such files. @shard may be NULL. */
bool annotations_in_files(const struct dataset *dataset, const struct shard *shard);
/* Writes the annotations that window->annotations requests. @shard is open, and reading it may
 * block; NULL if no annotations come from files. False: @fault. */
bool annotations_write(
	const struct reader_read *window, const struct shard *shard, struct fault *fault);
#endif
