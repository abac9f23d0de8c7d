/*
 * A reader reads windows of shards into slots, of any format. The data thread owns a reader; only
 * reader_kick() may be called from other threads.
 *
 *   reader_queue → fast path: its file is open, and the data thread need not wait (fast.c)
 *                → otherwise slow path: one function in a thread of the pool (slow.c) → reader_reap
 *
 * Each path has the shard's file open, reads or decodes the window into the slot, checks its
 * tokens, writes its annotations, and looks whether the file is still the same: a shard that was
 * written to meanwhile is a fault. A file is opened on first use, compared with the dataset's list
 * (size, inode, mtime), and kept open while there is room (files.c).
 *
 * Shards of a dataset in a store have no descriptor, and there is no look: the store compares every
 * answer with the manifest.
 *
 * A read ends exactly once: reader_reap() returns every tag that was queued, with or without a
 * fault.
 */
#ifndef TOKEND_READER_H
#define TOKEND_READER_H

#include "daemon/catalog/catalog.h"
#include "proto/fault.h"
#include "proto/ring.h"

struct reader;

/* A window of one shard, and its destination. */
struct reader_read {
	uint64_t tag;	  /* the caller's */
	uint32_t session; /* < LIMIT_SESSIONS: see reader_cancel() */
	uint32_t stream;  /* < reader_options.streams: whose share of the reader it uses */
	const struct dataset *dataset;
	uint64_t shard;
	uint64_t token;	 /* first token */
	uint64_t tokens; /* ≥ 1 */
	void *to;	 /* tokens × token_bytes bytes; the reader's until the tag is returned */
	struct annotations annotations; /* of these tokens */
	int64_t since_ns;		/* the caller's */
};

struct reader_done {
	uint64_t tag; /* these are as they were queued */
	const struct dataset *dataset;
	uint64_t tokens;
	int64_t since_ns;
	/*
	 * NULL: the window was read. Otherwise the code is FAULT_CHANGED if the shard is not, or no
	 * longer, the one that was listed; FAULT_DATA or FAULT_TOKEN if its contents cannot be
	 * served, or end too early; otherwise that of a failed system call, with its errno in
	 * error, which is ECANCELED after reader_cancel(). One that may pass has been tried three
	 * times in all. The text is about the shard and does not name it. Valid until the next
	 * reader_queue() or reader_reap().
	 */
	const struct fault *fault;
};

struct reader_options {
	enum config_io io;
	bool direct;	       /* O_DIRECT, through a staging buffer for each read */
	unsigned depth;	       /* most local reads in flight */
	unsigned store_depth;  /* the same of reads from stores; 0: there are none */
	struct stores *stores; /* NULL: there are none. They outlive the reader */
	unsigned files;	       /* open shards, ≥ 1; beyond them only those in use are kept */
	uint64_t frames_bytes; /* cache of decoded frames; 0: no shard is compressed */
	/* Memory for the indexes of open shards. Beyond it only those in use are kept. */
	uint64_t indexes_bytes;
	unsigned streams;	       /* that share the reader; 0: one */
	uint64_t largest_window_bytes; /* of any read; sizes the staging of `direct` */
	/* Gets one line, when a file system refuses O_DIRECT. In any thread. */
	void (*log)(const char *line);
};

/*
 * Opens a reader. NULL: @fault. CONFIG_IO_AUTO uses io_uring, and pread if io_uring cannot be used;
 * then @note is one line about that, otherwise "". CONFIG_IO_URING fails instead.
 */
struct reader *reader_open(
	const struct reader_options *options, char *note, size_t note_bytes, struct fault *fault);
/* Waits for the reads in flight and drops their completions. Those from stores must have been
 * cancelled, or the stores stopped. */
void reader_close(struct reader *reader);
const char *reader_name(const struct reader *reader); /* "uring" or "pread" */
/* Bytes that a reader with these options allocates when it is opened. They count in `memory:`. */
uint64_t reader_memory(const struct reader_options *options);

/* Queues a copy of @read. At most depth local reads may be queued and not yet reaped, and at most
 * store_depth reads from stores; the caller counts them. */
void reader_queue(struct reader *reader, const struct reader_read *read);
/* Starts all queued reads. */
void reader_commit(struct reader *reader);
/*
 * Returns up to @max completions in @done. If there are none, waits up to @timeout_ms (0: does not
 * wait) for one or for a kick, and may return 0. A fault is always the only completion.
 */
unsigned reader_reap(struct reader *reader, struct reader_done *done, unsigned max, int timeout_ms);
/* Makes the current or next reader_reap() return soon. Any thread. */
void reader_kick(struct reader *reader);

/* A session begins. */
void reader_allow(struct reader *reader, uint32_t session);
/* Ends all reads of the session from stores, soon: those that have no bytes yet fail with
 * ECANCELED. */
void reader_cancel(struct reader *reader, uint32_t session);

/* A local read that is in flight. Reads from stores do not count: they end with their process. */
struct reader_hang {
	unsigned ticks; /* since it was queued, or since its last try; 0: there is none */
	const struct dataset *dataset;
	uint64_t shard;
};
/* Is there one? Sets *@which to any, without its ticks, or to zeros. */
bool reader_busy(const struct reader *reader, struct reader_hang *which);

/* Call once a second: finds reads that do not end, and checks the invariants. */
void reader_tick(struct reader *reader);
/* The oldest read of the stream that has taken more than two ticks. */
struct reader_hang reader_hang(const struct reader *reader, uint32_t stream);

#endif
