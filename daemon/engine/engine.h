/*
 * The core: which window goes into which slot of which ring, when. It does no I/O and knows no
 * clock: events go in, actions come out, and between them it writes only to its own values and to
 * the ring memory it was handed.
 *
 *   ATTACH ┐                              ┌ READ    tokens of a shard into a slot
 *   DETACH │                              │ WAKE    the client waits: send it a byte
 *   KICK   ├→ engine_step() → actions ────┤ FAILED  a stream cannot go on: why
 *   DONE   │                              │ HOSTILE a client wrote nonsense into its ring
 *   TICK   │                              └ GONE    nothing touches this feed's memory any more
 *   SLOW   ┘
 *
 * One *feed* is one session's ring and its place in the order. Feeds know nothing of each other but
 * share the reads in flight: users equally, the runs of one user equally, and the feeds of one run
 * equally, counted in bytes (turns.h). One stream may have three quarters of the reads in flight,
 * so that storage that stops to answer leaves some for the other streams; streams that are slow
 * share one quarter. Everything a feed needs is allocated when it is made; a step allocates
 * nothing. It never looks at tokens: whoever reads a row's also writes its annotations, where
 * documents begin in it and what may be a label, and is DONE when both are there.
 */
#ifndef TOKEND_ENGINE_H
#define TOKEND_ENGINE_H

#include "proto/cursor.h"
#include "proto/ring.h"
#include "proto/table.h"

struct engine;
struct feed;

/* One dataset of a feed's cursor. table is NULL where the cursor keeps a dataset that is never
 * served any more. */
struct feed_source {
	const struct table *table;
	const void *owner; /* handed back in ENGINE_READ; the engine does not look into it */
};

struct feed_options {
	uint32_t id;	    /* the caller's, < LIMIT_SESSIONS, unique among live feeds */
	uint32_t stream;    /* < LIMIT_STREAMS; feeds of one stream fail together */
	uint64_t user, run; /* whose share of the reads it takes part in; runs are told apart within
			       a user */
	uint64_t rank, world;
	struct ring ring; /* formatted, zero-filled; the memory is the caller's until ENGINE_GONE */
	const struct feed_source *source; /* [cursor->datasets], copied */
};

/* NULL when out of memory. @cursor is copied. */
struct feed *feed_new(const struct cursor *cursor, const struct feed_options *options);
/* Only after ENGINE_GONE, or if it was never attached. */
void feed_free(struct feed *feed);
/* Micro-batches a rank gets from @cursor to the end of its stream, or RING_ENDLESS. */
uint64_t feed_batches(const struct cursor *cursor, uint64_t world, uint64_t micro_batch);

struct engine_event {
	enum {
		ENGINE_ATTACH, /* feed */
		ENGINE_DETACH, /* id; GONE follows, at once or when its last read is done */
		ENGINE_KICK,   /* id: the client released slots */
		ENGINE_DONE,   /* tag, fault */
		ENGINE_TICK,   /* once a second: looks for wake-ups that were lost */
		ENGINE_PUMP,   /* nothing happened; go on where the action list was full */
		ENGINE_SLOW,   /* id is a stream's: reads of it do not come back (slow), or do again
				*/
	} type;
	uint32_t id;
	struct feed *feed;
	uint64_t tag;
	int fault;	/* 0: read; else the caller's code, handed on in ENGINE_FAILED */
	bool retryable; /* a fault that may pass: tried three times in all */
	bool slow;
};

struct engine_action {
	enum { ENGINE_READ, ENGINE_WAKE, ENGINE_FAILED, ENGINE_HOSTILE, ENGINE_GONE } type;
	uint32_t id;
	struct feed *feed; /* GONE: the caller's again */
	/* READ, and where a read FAILED */
	uint32_t stream;
	uint64_t tag;
	const void *owner;
	uint64_t shard, token, tokens;
	void *to;
	struct annotations annotations; /* READ: of these tokens, wanted too */
	int fault;
};

enum {
	ENGINE_ACTIONS = 256,
	ENGINE_RESERVE = 8, /* room that the list must have when a step begins */
};

struct engine_actions {
	unsigned count;
	bool more; /* there is more to do: step again with ENGINE_PUMP, after other events if there
		      are any */
	struct engine_action action[ENGINE_ACTIONS];
};

/* NULL when out of memory. At most @depth reads are in flight. */
struct engine *engine_new(unsigned depth);
void engine_free(struct engine *engine); /* no feed may be attached */
/* Appends to @out, which must have room for ENGINE_RESERVE more; the caller resets its count when
 * it has carried them out. */
void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out);

/* What the feed began at; does not change while the feed lives. Any thread. */
const struct cursor *feed_cursor(const struct feed *feed);

struct feed_counters {
	uint64_t published, released, lost_wakes;
	bool full;	 /* every slot is published and none released: the trainer is behind */
	uint64_t pinned; /* bytes of the ring, as the client says; RING_UNPINNED: refused; 0: nobody
			    asked */
};
/* A snapshot for status and metrics, from any thread while the feed lives. */
struct feed_counters feed_counters(const struct feed *feed);

#endif
