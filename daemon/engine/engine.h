/*
 * The core: which window goes into which slot of which ring, and when. It does no I/O and knows no
 * clock. Events go in and actions come out; in between it writes only to its own values and to the
 * ring memory that it was given.
 *
 *   ATTACH ┐                              ┌ READ    tokens of a shard into a slot
 *   DETACH │                              │ WAKE    the client waits: send it a byte
 *   KICK   ├→ engine_step() → actions ────┤ FAILED  a stream cannot go on
 *   DONE   │                              │ HOSTILE a client wrote counters that cannot be
 *   TICK   │                              └ GONE    nothing touches this feed's memory any more
 *   SLOW   ┘
 *
 * A *feed* is one session's ring and its position in the order. Feeds share the reads in flight:
 * users equally, the runs of one user equally, and the feeds of one run equally, counted in bytes
 * (turns.h). One stream may have three quarters of the reads in flight, so that storage that does
 * not answer leaves some to other streams. Streams that are slow share one quarter. Everything that
 * a feed needs is allocated when it is made; a step allocates nothing. The engine never looks at
 * tokens: the reader of a row writes its annotations as well, and reports DONE when both are there.
 */
#ifndef TOKEND_ENGINE_H
#define TOKEND_ENGINE_H

#include "proto/cursor.h"
#include "proto/ring.h"
#include "proto/table.h"

struct engine;
struct feed;

/* One dataset of a feed's cursor. table is NULL if the cursor has it but never serves it any more.
 */
struct feed_source {
	const struct table *table;
	const void *owner; /* returned in ENGINE_READ, never dereferenced */
};

struct feed_options {
	uint32_t id;	    /* the caller's, < LIMIT_SESSIONS, unique among live feeds */
	uint32_t stream;    /* < LIMIT_STREAMS; feeds of one stream fail together */
	uint64_t user, run; /* whose share of the reads it belongs to; `run` is a number within
			       that user */
	uint64_t rank, world;
	struct ring ring; /* formatted, zero-filled; the memory is the caller's until ENGINE_GONE */
	const struct feed_source *source; /* [cursor->datasets], copied */
};

/* NULL: out of memory. @cursor is copied. */
struct feed *feed_new(const struct cursor *cursor, const struct feed_options *options);
/* Call it only after ENGINE_GONE, or if the feed was never attached. */
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
		ENGINE_SLOW,   /* id is a stream's: its storage does not answer (slow), or does */
	} type;
	uint32_t id;
	struct feed *feed;
	uint64_t tag;
	enum fault_code fault; /* FAULT_NONE: read; otherwise it is reported in ENGINE_FAILED */
	bool retryable;	       /* a fault that may pass: the read is tried three times in all */
	bool slow;
};

struct engine_action {
	enum { ENGINE_READ, ENGINE_WAKE, ENGINE_FAILED, ENGINE_HOSTILE, ENGINE_GONE } type;
	uint32_t id;
	struct feed *feed; /* GONE: the caller's again */
	/* READ; FAILED: of the read that did */
	uint32_t stream;
	uint64_t tag;
	const void *owner;
	uint64_t shard, token, tokens;
	void *to;
	struct annotations annotations; /* READ: to be written as well */
	enum fault_code fault;
};

enum {
	ENGINE_ACTIONS = 256,
	ENGINE_RESERVE = 8, /* room in the list that a step needs when it begins */
};

struct engine_actions {
	unsigned count;
	bool more; /* call again with ENGINE_PUMP, after other events if there are any */
	struct engine_action action[ENGINE_ACTIONS];
};

/* NULL: out of memory. At most @depth reads, ≥ 1, are in flight. */
struct engine *engine_new(unsigned depth);
void engine_free(struct engine *engine); /* no feed may be attached */
/* Appends to @out, which must have room for ENGINE_RESERVE more. The caller resets its count once
 * it has performed the actions. */
void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out);

/* The cursor that the feed began at. It does not change while the feed lives. Any thread. */
const struct cursor *feed_cursor(const struct feed *feed);

struct feed_counters {
	uint64_t published, released, lost_wakes;
	bool full;	 /* every slot is published and none is released: the trainer is slower */
	uint64_t pinned; /* bytes of the ring that the client registered with a GPU's driver;
			    RING_UNPINNED: that failed; 0: it was not asked to */
};
/* A snapshot for status and metrics, from any thread while the feed lives. */
struct feed_counters feed_counters(const struct feed *feed);

#endif
