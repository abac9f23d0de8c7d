/*
 * The data thread: the one place where the engine meets the reader. It owns both; the control
 * thread talks to it through mailboxes of flags, one set a session: nothing can overflow, and two
 * kicks in a row are one.
 */
#ifndef TOKEND_DATA_THREAD_H
#define TOKEND_DATA_THREAD_H

#include "daemon/engine/engine.h"
#include "daemon/reader/reader.h"

struct data_thread;

enum {
	DATA_THREAD_FAILED = 1,	 /* the stream stopped: data_thread_failure() says why */
	DATA_THREAD_HOSTILE = 2, /* the client wrote nonsense into its ring */
	DATA_THREAD_GONE =
		4, /* the feed is the caller's again, and its socket is not used any more */
};

struct data_thread_failure {
	const struct dataset *dataset;
	uint64_t shard, token;
	struct fault fault; /* as in struct reader_done */
};

/* Takes over @reader, which @streams share. @ring is called in the data thread when
 * data_thread_take() has news. NULL: no memory, or no thread. */
struct data_thread *data_thread_start(struct reader *reader, unsigned depth, unsigned streams,
	void (*ring)(void *), void *context, struct fault *fault);
/* Every feed must be gone. Closes the reader. */
void data_thread_stop(struct data_thread *data_thread);

/* @socket gets the wake-up bytes until DATA_THREAD_GONE. The feed's id names the session from here
 * on.
 */
void data_thread_attach(
	struct data_thread *data_thread, uint32_t id, struct feed *feed, int socket);
void data_thread_kick(struct data_thread *data_thread, uint32_t id);
void data_thread_detach(struct data_thread *data_thread, uint32_t id);

/* The next session with news and its DATA_THREAD_ flags; false if there is none. */
bool data_thread_take(struct data_thread *data_thread, uint32_t *id, unsigned *news);
struct data_thread_failure data_thread_failure(const struct data_thread *data_thread, uint32_t id);

/* What the stream's storage did not answer to at the last tick, a second ago at most. */
struct reader_hang data_thread_hang(struct data_thread *data_thread, uint32_t stream);
/* Has the data thread answered since the last call? Asks it to answer until the next one. */
bool data_thread_answers(struct data_thread *data_thread);

#endif
