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

#include <sys/queue.h>

enum feed_state {
	FEED_IDLE,    /* nothing to do: asleep (wake_at), or at its end */
	FEED_READY,   /* in the list of feeds that have something to do */
	FEED_WAITING, /* in the list of those that wait for reads of their stream to end */
	FEED_HELD,    /* it has something to do, after its own reads */
	FEED_FAILING, /* its stream failed: nothing more is planned; not reported yet */
	FEED_FAILED,  /* the same, reported; or its client is hostile */
	FEED_LEAVING, /* detached; gone after its last read */
};

enum {
	FEED_QUANTUM = 64 << 10,   /* bytes of a turn */
	FEED_ROW_COST = 4 << 10,   /* of a row's read, in addition to its bytes */
	FEED_WAKE_COST = 16 << 10, /* of waking the client */
};

TAILQ_HEAD(feeds, feed);

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
	uint64_t woken;	  /* the last client_waits that got a wake-up */
	uint32_t reading; /* reads in flight */
	uint32_t away;	  /* of these, reads from stores */

	uint32_t *left; /* [slots] reads in flight, plus one while the slot is being planned */

	struct feeds *list; /* READY, WAITING: which contains it; otherwise NULL */
	TAILQ_ENTRY(feed) link;
	uint64_t cost;		      /* of a row, in bytes */
	uint64_t flying;	      /* cost of the local reads in flight */
	int64_t credit;		      /* what it may spend in this turn */
	uint32_t peers;		      /* attached feeds of its user */
	struct engine_action failure; /* FAILING */

	bool stored;	      /* some of its sources are in stores */
	bool located;	      /* the row that is planned next is: */
	struct ring_row next; /* ring_row.position: or padding */
	struct feed_source source[];
};

static inline bool feed_runs(const struct feed *feed)
{
	return feed->state != FEED_FAILING && feed->state != FEED_FAILED &&
	       feed->state != FEED_LEAVING;
}

/* Asserts the invariants above, in constant time. Words that the client writes are not checked. */
void feed_check(const struct feed *feed);

/*
 * Is there room to plan the next row? FULL: the ring is full, so the feed was put to sleep
 * (wake_at). HOSTILE: the client wrote an impossible `released`.
 */
enum feed_room { FEED_FULL, FEED_ROOM, FEED_ENDED, FEED_HOSTILE };
enum feed_room feed_room(struct feed *feed);
/* The place of the next row's read; of padding, and after the end, the local one. */
unsigned feed_place(struct feed *feed);
/* The place of the read of ring row @index. */
unsigned feed_place_of(const struct feed *feed, uint32_t index);
/* Plans the next row. True: it needs a read, which @read describes. */
bool feed_plan(struct feed *feed, struct engine_action *read);
/* Describes the read of ring row @index again. */
void feed_read_again(const struct feed *feed, uint32_t index, struct engine_action *read);
/* The read of ring row @index is no longer in flight. */
void feed_read_ended(struct feed *feed, uint32_t index);
/* Publishes the slots that are ready. True: send the client a wake-up. */
bool feed_publish(struct feed *feed);
/* Wakes the feed if it is asleep and can go on. True: it did. */
bool feed_awake(struct feed *feed);
/* The same, and also if a sixteenth of its ring is free, so that its client need not ask. */
bool feed_refill(struct feed *feed);

#endif
