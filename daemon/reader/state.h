/*
 * The reader, a read, and the states of a read: private to the reader's files.
 *
 * A read needs at most one operation of the backend at a time: its own, or one that it shares with
 * other reads (the opening of its file, or the look at it). So a backend for `depth` operations is
 * enough, and everything is allocated when the reader is opened.
 */
#ifndef TOKEND_READER_STATE_H
#define TOKEND_READER_STATE_H

#include "daemon/reader/files.h"
#include "daemon/reader/reader.h"
#include "daemon/reader/share.h"
#include "daemon/reader/watch.h"

#include <assert.h>

/*
 * FREE ─→ (PARKED ─→) (OPENING ─→) ┬→ READING ──────────┬→ ENDED ─→ DONE ─→ FREE
 *                                  ├→ FOUND ┬→ READING ─┤
 *                                  │        └→ DECODING ┤
 *                                  └→ DECODING ─────────┘
 *
 * Reads from stores are never ENDED, but DONE at once. From PARKED on, a read may fail (DONE). If
 * an NFS server forgot the file, the read begins again (AGAIN), once, and so does one whose fault
 * may pass, after a pause. state.c has the table of moves.
 */
enum read_state {
	READ_FREE,     /* in reader->unused */
	READ_PARKED,   /* waits for an entry of the table of open shards; in share->parked */
	READ_OPENING,  /* waits for its shard to be opened; in file->waiting */
	READ_FOUND,    /* the next commit reads it, or decodes it if it is in memory; in
			  reader->found */
	READ_READING,  /* the backend reads its bytes */
	READ_DECODING, /* a thread of the pool decodes, checks or fetches its tokens */
	READ_ENDED,    /* it has its window, or a fault of the contents, and waits for a look at
			  the file; in watch.ended, then in watch.held */
	READ_AGAIN,    /* begins again; in reader->again, or until `due_ns` in reader->paused */
	READ_DONE,     /* ready for reader_reap(); in reader->finished */
	READ_STATES,
};

struct read {
	struct io_work work;
	STAILQ_ENTRY(read) link; /* in the list of its state */
	enum read_state state;
	struct reader_read window; /* as it was queued */
	struct file *file;	   /* from OPENING to ENDED, as its user; otherwise NULL. A plain
				      shard in a store needs none */
	struct shard_place place;  /* FOUND: where the window begins */
	char *staging;		   /* the read's own buffer for O_DIRECT, or NULL */
	uint64_t start;		   /* byte offset of the first byte read; aligned if staged */
	uint64_t have;		   /* bytes read from there on */
	unsigned skip;		   /* of these, bytes before the window */
	unsigned tries;		   /* EINTR or EAGAIN in a row */
	bool stored;		   /* its dataset is in a store */
	bool cancelled;		   /* stored: nobody needs it any more */
	bool staged;		   /* READING: into its staging */
	bool reopened;		   /* it began again after ESTALE */
	int64_t due_ns;		   /* paused: when it begins again */
	unsigned attempts;	   /* that ended with a fault that may pass */
	struct fault fault;	   /* code FAULT_NONE: none */
};

struct reader {
	const struct io_ops *ops;
	void *backend;
	bool direct;
	uint64_t largest_window_bytes;
	struct stores *stores; /* or NULL */
	unsigned depth;	       /* local reads; those from stores follow them */
	unsigned reads, in_flight;
	struct read *read; /* [reads] */
	struct reads unused, unused_stored, found, again, paused, finished;
	unsigned openings;	/* of shards in stores, in flight */
	struct watched watched; /* files that wait for a look */
	struct shares shares;
	struct files files;
	struct frames *frames; /* NULL: no shard is compressed */
	/* Memory of the indexes of open shards, and what is reserved for indexes being read. */
	uint64_t indexes_bytes, reserved;
	uint64_t indexes_most;
	uint64_t index_largest; /* so far */
	char *staging;
	uint64_t staging_bytes;
	char notes[LIMIT_TEXT_BYTES];
	char warning[LIMIT_TEXT_BYTES]; /* the first since reader_warning() */
	unsigned warnings;		/* since then */
};

/* Bytes of staging for one read; 0 without @direct. */
uint64_t staging_each(bool direct, uint64_t largest_window_bytes);

/* For each state, the bits of the states that may follow. */
extern const unsigned read_moves[READ_STATES];

static inline void read_move(struct read *read, enum read_state to)
{
	assert(read_moves[read->state] & 1u << to);
	read->state = to;
}

/* Also puts the read at the end of @list. */
static inline void read_push(struct read *read, enum read_state to, struct reads *list)
{
	read_move(read, to);
	STAILQ_INSERT_TAIL(list, read, link);
}

/* Takes the first read of @list, or NULL. */
static inline struct read *reads_take(struct reads *list)
{
	struct read *read = STAILQ_FIRST(list);

	if (read)
		STAILQ_REMOVE_HEAD(list, link);
	return read;
}

static inline struct share *share_of(struct reader *reader, const struct read *read)
{
	assert(read->window.stream < reader->shares.count);
	return &reader->shares.share[read->window.stream];
}

/* Gives @work, of a shard that is in a store or not, to the backend, for the threads of @share. */
static inline void reader_submit(
	struct reader *reader, struct io_work *work, struct share *share, bool stored)
{
	assert(work->done && (work->call || work->bytes > 0));
	work->share = stored ? &share->away : &share->pool;
	work_begun(work, false);
	work->ticks = 0;
	reader->ops->submit(reader->backend, work);
}

/*
 * Fills @fault for @error of a system call or of reading a shard: FAULT_DATA if the contents cannot
 * be served (EBADMSG, ERANGE), otherwise as fault_errno() does. Always false.
 */
bool reader_fault(struct fault *fault, int error, const char *text);
/* The opening's session in the store: no read's, because it serves all. */
static inline uint32_t opening_session(const struct reader *reader, const struct file *file)
{
	return LIMIT_SESSIONS + (uint32_t)(file - reader->files.file);
}

/* Counts a try that ended with @error. True: repeat it. */
bool may_repeat(int error, unsigned *tries);
/* From now on reads @file through the page cache; notes that once, for reader_notes(). */
void reader_note_buffered(struct reader *reader, struct file *file);

/* Asserts the invariants of all reads, files and shares. Walks over all of them: for a tick. */
void reader_check(const struct reader *reader);
/* Asserts those of a reader without reads in flight, in constant time: before it sleeps. */
void reader_check_idle(const struct reader *reader);

#endif
