/*
 * Reading shards. One small interface, two ways of doing it: io_uring, and a pool of threads that
 * pread where io_uring is forbidden (most containers). Same bytes, same errors. The data thread
 * owns a reader; only reader_kick() may be called from others.
 *
 * The disk keeps a bounded table of open shards, opens on first use, and compares what it opened
 * with what the dataset listed (size, inode, mtime). Plain shards are read by the backend straight
 * to where the tokens belong; all others by the data thread if they are in memory, else in the
 * backend's pool. Before a read is handed up, its file is looked at again (watch.h): a shard that
 * was written to meanwhile is a fault. Short reads are continued. Marks follow the tokens, in the
 * pool where they come from files (annotations_write()). A read is done exactly once: every tag
 * that was queued comes back from reader_reap(), with 0 or an error.
 */
#ifndef TOKEND_DISK_H
#define TOKEND_DISK_H

#include "daemon/catalog/dataset.h"
#include "proto/annotations.h"

struct reader;

struct reader_read {
	uint64_t tag;	 /* the caller's */
	uint32_t stream; /* < reader_options.streams: whose share of the disk it uses */
	const struct dataset *dataset;
	uint64_t shard;
	uint64_t token; /* first token */
	uint64_t tokens;
	void *to; /* tokens × token_bytes bytes; untouched by others until the tag comes back */
	struct annotations annotations; /* of these tokens: what is not NULL is written, too */
};

enum reader_fault {
	READER_OK = 0,
	READER_ERRNO,	 /* open or read failed; see error */
	READER_SHORT,	 /* the file ends before the window does */
	READER_REPLACED, /* it is not the file that was listed at start */
	READER_CHANGED, /* it was written to while it was open; nothing that was read since its last
			 look is  handed up as read */
};

struct reader_done {
	uint64_t tag;
	enum reader_fault fault;
	int error; /* errno of READER_ERRNO */
	/* READER_REPLACED, READER_CHANGED: what differs; READER_ERRNO: what is wrong, or "". Valid
	 * until the next reader_queue() or reader_reap(), which is why a fault is handed up alone.
	 */
	const char *why;
};

enum { READER_WHY_BYTES = 256 };

struct reader_options {
	enum config_io io;
	bool direct;	/* O_DIRECT through staging of our own */
	unsigned depth; /* reads in flight, ≤ LIMIT_READS */
	unsigned files; /* shards held open, ≥ 1; more reads than that many shards at a time wait
			   their turn */
	uint64_t frames_bytes; /* decoded frames that are kept; 0: nothing is compressed */
	/* Of shards that are not plain, or marked, and held open; beyond it only those in use. Room
	 * is made before one is opened, up to a quarter for all that are opened at a time. */
	uint64_t indexes_bytes;
	unsigned streams;	       /* that share it; 0: one */
	uint64_t largest_window_bytes; /* of any read; direct keeps staging for depth of them */
};

/*
 * NULL with one line in @why. CONFIG_IO_AUTO takes io_uring and falls back to pread if the kernel
 * forbids it;
 * *@note then says so in one line (else ""). CONFIG_IO_URING fails instead.
 */
struct reader *reader_open(
	const struct reader_options *options, char *note, char *why, size_t text_bytes);
/* Waits for what is in flight; its completions are lost. */
void reader_close(struct reader *reader);
const char *reader_name(const struct reader *reader); /* "uring" or "pread" */
/* What a disk of these options keeps for itself, to be counted in `memory:`: all of it is allocated
 * when it is opened. */
uint64_t reader_memory(const struct reader_options *options);
/* "", or one line once a file system refused O_DIRECT and its shards are read through the page
 * cache. */
const char *reader_notes(const struct reader *reader);

/*
 * What happened to open shards since the last call and is no fault, one line for all of it; false:
 * nothing.
 */
bool reader_warning(struct reader *reader, char *text, size_t text_bytes);

/* Copies @read. At most depth may be in flight, that is, queued and not yet reaped: the caller
 * counts. */
void reader_queue(struct reader *reader, const struct reader_read *read);
/* Starts everything queued. */
void reader_commit(struct reader *reader);
/*
 * Fills at most @max completions. With none at hand it waits for the first one, for a kick, or for
 * @timeout_ms (0: do not wait), and may return 0.
 */
unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms);

/* The oldest read or opening of a stream that does not come back. */
struct reader_hang {
	unsigned ticks; /* since it was begun; 0: there is none */
	const struct dataset *dataset;
	uint64_t shard;
};

/* To be called once a second: looks for what does not come back. */
void reader_tick(struct reader *reader);
/* Is the stream slow, that is, did one not come back for more than two ticks? */
struct reader_hang reader_hang(const struct reader *reader, uint32_t stream);

/* Makes the current or next reader_reap() return soon. Any thread. */
void reader_kick(struct reader *reader);

#endif
