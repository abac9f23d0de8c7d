/*
 * The data thread: the one place where the engine meets the reader. It owns both; the control
 * thread talks to it through mailboxes of flags, one set a session: nothing can overflow, and two
 * kicks in a row are one.
 */
#ifndef TOKEND_FEEDER_H
#define TOKEND_FEEDER_H

#include "daemon/engine/engine.h"
#include "daemon/reader/reader.h"

struct feeder;

enum {
	FEEDER_FAILED = 1,  /* the stream stopped: feeder_failure() says why */
	FEEDER_HOSTILE = 2, /* the client wrote nonsense into its ring */
	FEEDER_GONE = 4, /* the feed is the caller's again, and its socket is not used any more */
};

struct feeder_failure {
	const struct dataset *dataset;
	uint64_t shard, token;
	struct fault fault; /* as in struct reader_done */
};

/* Takes over @reader, which @streams share. @ring is called in the data thread when feeder_take()
 * has news. NULL: no memory, or no thread. */
struct feeder *feeder_start(struct reader *reader, unsigned depth, unsigned streams,
	void (*ring)(void *), void *context, struct fault *fault);
/* Every feed must be gone. Closes the reader. */
void feeder_stop(struct feeder *feeder);

/* @socket gets the wake-up bytes until FEEDER_GONE. The feed's id names the session from here on.
 */
void feeder_attach(struct feeder *feeder, uint32_t id, struct feed *feed, int socket);
void feeder_kick(struct feeder *feeder, uint32_t id);
void feeder_detach(struct feeder *feeder, uint32_t id);

/* The next session with news and its FEEDER_ flags; false if there is none. */
bool feeder_take(struct feeder *feeder, uint32_t *id, unsigned *news);
struct feeder_failure feeder_failure(const struct feeder *feeder, uint32_t id);

/* What the stream's storage did not answer to at the last tick, a second ago at most. */
struct reader_hang feeder_hang(struct feeder *feeder, uint32_t stream);
/* Has the data thread answered since the last call? Asks it to answer until the next one. */
bool feeder_answers(struct feeder *feeder);

#endif
