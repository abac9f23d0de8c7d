/*
 * Reading windows of shards into slots. The engine says which tokens belong where; a reader brings
 * them there, whatever the format and however the bytes are read (io_uring, or a pool of threads
 * that pread). Same bytes, same faults. The data thread owns a reader; only reader_kick() may be
 * called from other threads.
 *
 *   reader_queue → find or open the shard → read or decode into the slot → annotations
 *                → is the file still the same? → reader_reap
 *
 * A reader keeps a bounded table of open shards. It opens a shard on first use and compares it with
 * what the dataset listed (size, inode, mtime). Bytes of plain shards are read straight to where
 * the tokens belong. Other shards are decoded: by the data thread if they are in memory, otherwise
 * in the backend's pool. Short reads are continued. Annotations follow the tokens. Before a read is
 * handed up, its file is looked at again (look.h): a shard that was written to meanwhile is a
 * fault.
 *
 * A read ends exactly once: every tag that was queued comes back from reader_reap(), with or
 * without a fault.
 *
 * Where to look: queue.c finds or waits for a shard, open.c opens it, read.c moves its bytes into
 * the slot, decode.c does so for shards that are not plain, end.c holds what was read until the
 * file was looked at. state.h has the states of a read.
 */
#ifndef TOKEND_READER_H
#define TOKEND_READER_H

#include "daemon/catalog/dataset.h"
#include "proto/annotations.h"
#include "proto/fault.h"

struct reader;
struct io_ops;

/* A window of one shard, and where it belongs. */
struct reader_read {
	uint64_t tag;	 /* the caller's */
	uint32_t stream; /* < reader_options.streams: whose share of the reader it uses */
	const struct dataset *dataset;
	uint64_t shard;
	uint64_t token;	 /* first token */
	uint64_t tokens; /* ≥ 1 */
	void *to; /* tokens × token_bytes bytes; untouched by others until the tag comes back */
	struct annotations annotations; /* of these tokens: what is not NULL is written, too */
};

struct reader_done {
	uint64_t tag;
	/*
	 * NULL: the window is there. Otherwise the fault's code is FAULT_CHANGED if the shard is
	 * not the one that was listed, or no longer; FAULT_DATA if its contents cannot be served,
	 * or it ends too early; otherwise of a system call, with its errno in error. `passing` says
	 * whether to try again. The text is about the shard and does not name it.
	 * Valid until the next reader_queue() or reader_reap(), so a fault is handed up alone.
	 */
	const struct fault *fault;
};

struct reader_options {
	enum config_io io;
	bool direct;	/* O_DIRECT through staging of our own */
	unsigned depth; /* reads in flight, ≤ LIMIT_READS */
	unsigned files; /* shards held open, ≥ 1; more reads than that many shards at a time wait
			   their turn */
	uint64_t frames_bytes; /* decoded frames that are kept; 0: nothing is compressed */
	/* Memory for the indexes of open shards; beyond it only those in use are kept. Room is made
	 * before one is opened, up to a quarter for all that are opened at a time. */
	uint64_t indexes_bytes;
	unsigned streams;	       /* that share it; 0: one */
	uint64_t largest_window_bytes; /* of any read; direct keeps staging for depth of them */
};

/*
 * NULL: @fault. CONFIG_IO_AUTO takes io_uring and falls back to pread if the kernel forbids it;
 * @note then says so in one line (otherwise ""). CONFIG_IO_URING fails instead.
 */
struct reader *reader_open(
	const struct reader_options *options, char *note, size_t note_bytes, struct fault *fault);
/* The same with a backend of the caller's: for tests. */
struct reader *reader_open_with(
	const struct io_ops *ops, const struct reader_options *options, struct fault *fault);
/* Waits for the reads in flight; their completions are lost. */
void reader_close(struct reader *reader);
const char *reader_name(const struct reader *reader); /* "uring" or "pread" */
/* Bytes that a reader with these options allocates when it is opened, to be counted in `memory:`.
 */
uint64_t reader_memory(const struct reader_options *options);
/* "", or one line once a file system refused O_DIRECT and its shards are read through the page
 * cache. */
const char *reader_notes(const struct reader *reader);
/* What happened to open shards since the last call and is no fault, one line for all of it. False:
 * nothing. */
bool reader_warning(struct reader *reader, char *text, size_t text_bytes);

/* Copies @read. At most depth reads may be in flight, that is, queued and not yet reaped: the
 * caller counts them. */
void reader_queue(struct reader *reader, const struct reader_read *read);
/* Starts everything that is queued. */
void reader_commit(struct reader *reader);
/*
 * Fills at most @max completions. If there are none, it waits for the first one, for a kick, or for
 * @timeout_ms (0: do not wait), and may return 0.
 */
unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms);
/* Makes the current or next reader_reap() return soon. Any thread. */
void reader_kick(struct reader *reader);

/* The oldest read or opening of a stream that does not come back. */
struct reader_hang {
	unsigned ticks; /* since it was begun; 0: there is none */
	const struct dataset *dataset;
	uint64_t shard;
};

/* To be called once a second: looks for what does not come back, and checks the invariants. */
void reader_tick(struct reader *reader);
/* Is the stream slow, that is, did a read or an opening not come back for more than two ticks? */
struct reader_hang reader_hang(const struct reader *reader, uint32_t stream);

#endif
