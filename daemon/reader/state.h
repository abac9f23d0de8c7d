/*
 * What the files of this room share: the reader, a read, and the states of a read.
 *
 * A read stands for at most one operation of the backend: its own, or a share in the opening it
 * waits for, or in the look at the file it has read. So `depth` of them are enough, and everything
 * is allocated when the reader is opened.
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
 *                                  ├→ FOUND ─→ DECODING ┤
 *                                  └→ DECODING ─────────┘
 * From PARKED on, a read may fail (DONE). One whose NFS server forgot the file begins again, once
 * (AGAIN). state.c has the table of moves.
 */
enum read_state {
	READ_FREE,     /* in reader->unused */
	READ_PARKED,   /* its stream may use no more entries of the table: in share->parked */
	READ_OPENING,  /* its shard is being opened: in file->waiting */
	READ_FOUND,    /* its tokens are decoded at the next commit if they are in memory: in
			  reader->found */
	READ_READING,  /* the backend reads its bytes */
	READ_DECODING, /* a thread of the pool decodes them, or checks what was read */
	READ_ENDED,    /* all is there, or the contents are at fault; the next look at the file says
			  whether it was the shard: in watch.ended, then in watch.held */
	READ_AGAIN,    /* in reader->again */
	READ_DONE,     /* in reader->finished */
	READ_STATES,
};

struct read {
	struct io_work work;
	STAILQ_ENTRY(read) link; /* of the list that its state says */
	enum read_state state;
	struct reader_read window; /* as it was queued */
	struct file *file;	   /* from OPENING to ENDED, with this read as a user; else NULL */
	struct shard_place place;  /* FOUND: where decoding begins */
	char *staging;		   /* O_DIRECT's, own; NULL where the reader is not direct */
	uint64_t start;	    /* byte of the file at which `have` begins: aligned where staged */
	uint64_t have;	    /* bytes that were read from there on */
	unsigned skip;	    /* of these, bytes before the window */
	unsigned tries;	    /* EINTR or EAGAIN in a row */
	bool staged;	    /* READING: into its staging */
	bool reopened;	    /* ESTALE gets one chance */
	struct fault fault; /* code FAULT_NONE: none */
};

struct reader {
	const struct io_ops *ops;
	void *backend;
	bool direct;
	uint64_t largest_window_bytes;
	unsigned depth, in_flight;
	struct read *read; /* [depth] */
	struct reads unused, found, again, finished;
	struct watched watched; /* files to be looked at before their reads are done */
	struct shares shares;
	struct files files;
	struct frames *frames; /* NULL: nothing is compressed */
	/* Indexes of open shards, with what is reserved for those that are being made. */
	uint64_t indexes_bytes, indexes_most, reserved;
	uint64_t index_largest; /* that there was */
	char *staging;
	uint64_t staging_bytes;
	char notes[LIMIT_TEXT_BYTES];
	char warning[LIMIT_TEXT_BYTES]; /* the first of them */
	unsigned warnings;		/* since it was taken */
};

/* Bytes of staging for one read; 0 where the reader is not direct. */
uint64_t staging_each(bool direct, uint64_t largest_window_bytes);

/* From each state, bits of the states that may follow. */
extern const unsigned read_moves[READ_STATES];

static inline void read_move(struct read *read, enum read_state to)
{
	assert(read_moves[read->state] & 1u << to);
	read->state = to;
}

/* The same, and puts it at the end of @list. */
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

/* Has the backend do @work, in the threads of @share. */
static inline void reader_submit(struct reader *reader, struct io_work *work, struct share *share)
{
	assert(work->done && (work->call || work->bytes > 0));
	work->share = &share->pool;
	work_begun(work, false);
	work->ticks = 0;
	reader->ops->submit(reader->backend, work);
}

/*
 * A system call, or reading a shard, failed with @error: FAULT_DATA if that says that the contents
 * cannot be served (EBADMSG, ERANGE), otherwise as fault_errno(). Always false.
 */
bool reader_fault(struct fault *fault, int error, const char *text);
/* Counts a try that ended with @error. False: it must not be repeated, or was too often. */
bool may_repeat(int error, unsigned *tries);
/* Shards of @file's file system are read through the page cache from now on. */
void reader_note_buffered(struct reader *reader, struct file *file);

/* Asserts what must hold between any two calls: of all reads, files and shares. Costs a walk over
 * all of them: for a tick. */
void reader_check(const struct reader *reader);
/* The same for a reader without reads in flight, at no cost: for when it goes to sleep. */
void reader_check_idle(const struct reader *reader);

#endif
