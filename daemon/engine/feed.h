/*
 * A feed: one session's position in the order, and the state of its slots. Private to the engine.
 *
 *   released ≤ published ≤ planned ≤ released + slots
 *
 * A slot is planned row by row. Each row becomes a read, or zeros past the end of the stream. A
 * slot is published once all of its reads are done and all slots before it are published.
 */
#ifndef TOKEND_FEED_H
#define TOKEND_FEED_H

#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"

#include <sys/queue.h>

enum feed_state {
	FEED_RUNNING,
	FEED_FAILED,  /* its stream failed or its client is hostile: nothing more is planned */
	FEED_LEAVING, /* detached; gone after its last read */
};

enum { FEED_AHEAD = 8 };

STAILQ_HEAD(feeds, feed);

struct feed {
	struct feed_options options;
	struct cursor cursor;
	struct order order;
	enum feed_state state;

	uint64_t batches; /* slots in all, or RING_ENDLESS */
	uint64_t planned; /* slots that are planned completely */
	uint32_t row;	  /* planned rows of the next slot */
	uint64_t published;
	uint64_t released;
	uint64_t wake_at; /* asleep until so many slots are released; 0: awake */
	uint64_t woke_at; /* the wake_at that the client reached last; 0: none */
	uint64_t seen;	  /* released at the last feed_active() */
	bool late;	  /* wake_at was reached at the last tick, but no kick has come */
	uint64_t woken;	  /* the last client_waits that got a wake-up */
	uint32_t reading; /* reads in flight */
	uint32_t away;	  /* of these, reads from stores */
	_Atomic uint64_t lost_wakes;

	uint32_t *left;	  /* [slots] reads in flight, plus one while the slot is being planned */
	uint8_t *retries; /* [slots × rows] */

	struct turn turn;
	uint64_t cost; /* of a row, for turns */
	/* While it waits for its stream's share of the reads, or for a queue, and is not ready. */
	STAILQ_ENTRY(feed) waits;
	struct feeds *waiting; /* the list; NULL: it does not wait */
	bool failing;	       /* ENGINE_FAILED is still to be reported */
	struct engine_action failure;

	bool stored;	  /* some of its sources are in stores */
	uint32_t located; /* rows of the next slot that are located, FEED_AHEAD at a time */
	struct ring_row ahead[FEED_AHEAD]; /* the last of these; ring_row.position: or padding */
	struct feed_source source[];
};

/* Asserts the invariants above, in constant time. Words that the client writes are not checked. */
void feed_check(const struct feed *feed);
/* The same for every slot. */
void feed_check_slots(const struct feed *feed);

/*
 * Is there room to plan the next row? FULL: the ring is full, so the feed was put to sleep
 * (wake_at). FIRST: ENGINE_FIRST_ROWS are planned; it is not asleep, and has room when a batch is
 * published. HOSTILE: the client wrote an impossible `released`.
 */
enum feed_room { FEED_FULL, FEED_FIRST, FEED_ROOM, FEED_ENDED, FEED_HOSTILE };
enum feed_room feed_room(struct feed *feed);
/* The queue of the next row's read; of padding, and after the end, the local one. */
unsigned feed_queue(struct feed *feed);
/* The queue of the read of ring row @index. */
unsigned feed_queue_of(const struct feed *feed, uint32_t index);
/* Plans the next row. True: it needs a read, which @read describes. */
bool feed_plan(struct feed *feed, struct engine_action *read);
/* Describes the read of ring row @index again, for a retry or a failure. */
void feed_read_again(const struct feed *feed, uint32_t index, struct engine_action *read);
/* Publishes the slots that are ready. True: send the client a wake-up. */
bool feed_publish(struct feed *feed);
/* Wakes the feed if it is asleep and can go on. True: it did. */
bool feed_awake(struct feed *feed);
/* Wakes the feed if a sixteenth of its ring is free, and its client need not ask yet. True: it did.
 */
bool feed_early(struct feed *feed);
/* Did the client release slots since the last call? Called by each tick. */
bool feed_active(struct feed *feed);
/* Wakes the feed, and counts, if its wake-up has not come since the last tick: then it is lost. */
bool feed_overdue(struct feed *feed);

#endif
