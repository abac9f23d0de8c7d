/*
 * The core decides which window goes into which slot of which ring, and when. It does no I/O and
 * knows no clock. Events go in and actions come out. It writes only to its own values and to ring
 * memory.
 *
 *   ATTACH ┐                              ┌ READ    tokens of a shard into a slot
 *   DETACH │                              │ CANCEL  a feed's reads from stores are not needed
 *   KICK   ├→ engine_step() → actions ────┤ WAKE    the client waits: send it a byte
 *   DONE   │                              │ FAILED  a stream cannot go on
 *   REFILL │                              │ HOSTILE a client wrote impossible counters
 *   TICK   │                              └ GONE    the feed's memory is no longer used
 *   PAUSE  │
 *   PUMP   ┘
 *
 * A *feed* is one session's ring and its position in the order. Feeds take turns. Users get equal
 * shares in bytes, and so do the feeds of one user.
 *
 * A *place* is where reads come from: local storage, or a store. It may stop answering, and
 * streams of one place may use different disks. So in each place, each stream has one read of its
 * own, and of the rest it may take half of what is free. A feed whose next row needs a read that
 * its stream may not begin now rests until reads of its stream there are done.
 *
 * All memory of a feed is allocated when it is made; a step allocates nothing. The engine never
 * looks at tokens: a read covers a row's tokens and its annotations.
 *
 * One thread steps an engine. Functions that other threads may call say so.
 */
#ifndef TOKEND_ENGINE_H
#define TOKEND_ENGINE_H

#include "proto/cursor.h"
#include "proto/ring.h"
#include "proto/table.h"

struct engine;
struct feed;

enum { ENGINE_PLACES = 8 }; /* local storage, and stores */

/* One dataset of a feed's cursor. table is NULL if the cursor never serves it any more. */
struct feed_source {
	const struct table *table;
	const void *owner; /* returned in ENGINE_READ, never dereferenced */
	unsigned place;	   /* < ENGINE_PLACES; 0: local storage, others: stores */
};

struct feed_options {
	uint32_t id;	 /* the caller's, < LIMIT_SESSIONS, unique among live feeds */
	uint32_t stream; /* < LIMIT_STREAMS; feeds of one stream fail together */
	uint64_t user;	 /* whose turns it uses */
	uint64_t rank, world;
	struct ring ring; /* formatted, zero-filled; the memory is the caller's until ENGINE_GONE */
	const struct feed_source *source; /* [cursor->datasets], copied */
};

/* Makes a feed at @cursor, which is copied. NULL: out of memory. */
struct feed *feed_new(const struct cursor *cursor, const struct feed_options *options);
/* Only after ENGINE_GONE, or if the feed was never attached. */
void feed_free(struct feed *feed);
/* The micro-batches that each rank gets from @cursor to the end of its stream, or RING_ENDLESS. */
uint64_t feed_batches(const struct cursor *cursor, uint64_t world, uint64_t micro_batch);

struct engine_event {
	enum {
		ENGINE_ATTACH, /* feed */
		ENGINE_DETACH, /* id; GONE follows, at once or when its last read is done */
		ENGINE_KICK,   /* id: the client released slots */
		ENGINE_DONE,   /* tag, fault */
		/* Now and then: fills rings before their clients ask for it, or if the wake-up that
		 * asked for it was lost. */
		ENGINE_REFILL,
		ENGINE_TICK,  /* once a second: checks invariants */
		ENGINE_PUMP,  /* continues after a full list of actions */
		ENGINE_PAUSE, /* on: no read begins until further notice */
	} type;
	uint32_t id;
	struct feed *feed;
	uint64_t tag;
	enum fault_code fault; /* FAULT_NONE: it was read; otherwise ENGINE_FAILED reports it */
	bool on;
};

struct engine_action {
	enum {
		ENGINE_READ,
		ENGINE_CANCEL, /* its reads from stores may end at once, with any fault */
		ENGINE_WAKE,
		ENGINE_FAILED,
		ENGINE_HOSTILE,
		ENGINE_GONE,
	} type;
	uint32_t id;
	struct feed *feed; /* WAKE; GONE: the caller's again */
	/* READ, and FAILED: the read that failed */
	uint32_t stream;
	uint64_t tag;
	const void *owner;
	uint64_t shard, token, tokens;
	void *to;
	struct annotations annotations; /* READ: to be written, too */
	enum fault_code fault;
};

enum {
	ENGINE_ACTIONS = 256,
	ENGINE_RESERVE = 8, /* actions that an event, or a row, needs room for */
};

struct engine_actions {
	unsigned count;
	bool more; /* call again with ENGINE_PUMP, after any other events */
	struct engine_action action[ENGINE_ACTIONS];
};

/* An engine with at most @depth local reads, ≥ 1, and @store_depth from each store in flight, in
 * addition to one for each stream. NULL: out of memory. */
struct engine *engine_new(unsigned depth, unsigned store_depth);
void engine_free(struct engine *engine); /* no feed may be attached */
/* Handles @event. Sets @out to the actions, which the caller performs. */
void engine_step(
	struct engine *engine, const struct engine_event *event, struct engine_actions *out);

/* Is a feed attached? Otherwise ENGINE_REFILL is useless. */
bool engine_busy(const struct engine *engine);

/* When the wait of the client began that ENGINE_WAKE ends: ring_waits_since(). */
uint64_t feed_waits_since(const struct feed *feed);
/* The cursor at which the feed began. It does not change while the feed exists. Any thread. */
const struct cursor *feed_cursor(const struct feed *feed);

/* Shows the feed's client what its reads wait for; "": for nothing. For the engine's thread, while
 * the feed is attached. */
void feed_say_reason(const struct feed *feed, const char *text);

struct feed_counters {
	uint64_t published, released;
	bool waits; /* the trainer waits for a batch */
	bool full;  /* all slots are published, none is released: the trainer is slower */
};
/* A snapshot for status and metrics. Any thread, while the feed exists. */
struct feed_counters feed_counters(const struct feed *feed);

#endif
