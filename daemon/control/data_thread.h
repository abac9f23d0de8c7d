/*
 * The data thread: it owns the engine and the reader, and passes events between them. The control
 * thread talks to it through mailboxes that hold one set of flags per session. They cannot
 * overflow, and two kicks in a row count as one. All functions are the control thread's.
 */
#ifndef TOKEND_DATA_THREAD_H
#define TOKEND_DATA_THREAD_H

#include "daemon/control/counts.h"
#include "daemon/engine/engine.h"
#include "daemon/reader/reader.h"

struct data_thread;

enum {
	DATA_THREAD_FAILED = 1,	 /* the stream stopped; see data_thread_failure() */
	DATA_THREAD_HOSTILE = 2, /* the client wrote values out of range into its ring */
	DATA_THREAD_GONE = 4,	 /* the feed is the caller's again; its socket is unused */
};

struct data_thread_failure {
	const struct dataset *dataset;
	uint64_t shard, token;
	struct fault fault; /* as in struct reader_done */
};

struct data_thread_options {
	struct reader *reader;
	unsigned depth;	       /* local reads in flight at most */
	unsigned store_depth;  /* the same of each queue for stores; 0: there are none */
	unsigned streams;      /* that share the reader */
	struct stores *stores; /* or NULL */
	/* Called with @context, in the data thread, when data_thread_take() has news. */
	void (*ring)(void *context);
	void *context;
};

/* Takes over the reader. NULL with @fault: out of memory, or no thread; the reader is the caller's
 * then. */
struct data_thread *data_thread_start(
	const struct data_thread_options *options, struct fault *fault);
/* Ends the thread and closes the reader. Every feed must be gone. */
void data_thread_stop(struct data_thread *data_thread);

/*
 * Lends @feed and @socket to the data thread until DATA_THREAD_GONE. @socket gets the wake-up
 * bytes. @id: the feed's, which names the session below. @counts: of its stream.
 */
void data_thread_attach(struct data_thread *data_thread, uint32_t id, struct feed *feed, int socket,
	struct stream_counts *counts);
/* The client has released slots, or waits. */
void data_thread_kick(struct data_thread *data_thread, uint32_t id);
/* Asks for the feed back: DATA_THREAD_GONE follows once no read into its ring is in flight. */
void data_thread_detach(struct data_thread *data_thread, uint32_t id);

/* The next session with news, and its DATA_THREAD_ flags. False: there is none. */
bool data_thread_take(struct data_thread *data_thread, uint32_t *id, unsigned *news);
struct data_thread_failure data_thread_failure(const struct data_thread *data_thread, uint32_t id);

/* How often the session's trainer waited for a batch, and how long in all. */
struct data_thread_waits {
	uint64_t times, ns;
};
struct data_thread_waits data_thread_waits(const struct data_thread *data_thread, uint32_t id);

/* Begins no more reads, or goes on. Those in flight end. */
void data_thread_pause(struct data_thread *data_thread, bool pause);
/* While it pauses: a read of local storage that has not ended. */
struct reader_busy data_thread_busy(struct data_thread *data_thread);

/* The oldest read that the stream's storage had not answered at the last tick, ≤ 1 s ago. */
struct reader_hang data_thread_hang(struct data_thread *data_thread, uint32_t stream);
/* The number of turns that the data thread has made. Wakes it, so that it soon makes another. */
uint64_t data_thread_turns(struct data_thread *data_thread);

#endif
