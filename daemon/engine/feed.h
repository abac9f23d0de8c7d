/*
 * A feed: one session's place in the order and the state of its slots. Private to the engine.
 *
 *   released ≤ published ≤ planned ≤ released + slots
 *
 * A slot is planned row by row, each row becoming a read (or zeros, behind the end), and published
 * when its last read is done and all slots before it are published.
 */
#ifndef TOKEND_FEED_H
#define TOKEND_FEED_H

#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"

#include <sys/queue.h>

enum feed_state {
	FEED_RUNNING,
	FEED_FAILED,  /* its stream failed or its client is hostile: plans nothing more */
	FEED_LEAVING, /* detached: gone with its last read */
};

struct feed {
	struct feed_options options;
	struct cursor cursor;
	struct order order;
	enum feed_state state;

	uint64_t batches; /* slots in all, or RING_ENDLESS */
	uint64_t planned; /* slots whose rows are all planned */
	uint32_t row;	  /* rows planned of the slot behind them */
	uint64_t published;
	uint64_t released;
	uint64_t wake_at; /* released count it sleeps for; 0: it does not */
	bool late;	  /* the last tick saw that count reached, yet no kick came */
	uint64_t woken;	  /* the last client_waits that was answered */
	uint32_t reading; /* reads in flight */
	_Atomic uint64_t lost_wakes;

	uint32_t *left;	  /* [slots] reads to come, and one while the slot is being planned */
	uint8_t *retries; /* [slots × rows] */

	struct turn turn;
	uint64_t cost; /* of a row, when turns are counted */
	STAILQ_ENTRY(feed)
	waits; /* for its stream's share of the reads, while waiting: not ready then */
	bool waiting;
	bool failing; /* ENGINE_FAILED is still to be said */
	struct engine_action failure;

	struct feed_source source[];
};

/* May the next row be planned? Puts the feed to sleep (wake_at) when the ring is full. HOSTILE:
 * nonsense in released. */
enum feed_room { FEED_FULL, FEED_ROOM, FEED_ENDED, FEED_HOSTILE };
enum feed_room feed_room(struct feed *feed);
/* Plans the next row. True if it wants a read, which @read describes. */
bool feed_plan(struct feed *feed, struct engine_action *read);
/* The read of ring row @index again. */
void feed_read_again(const struct feed *feed, uint32_t index, struct engine_action *read);
/* Publishes what is ready. True if the client wants a byte. */
bool feed_publish(struct feed *feed);
/* After a kick: may the sleeping feed go on? It is awake then. */
bool feed_awake(struct feed *feed);
/* Might it, if it looked? */
bool feed_late(const struct feed *feed);

#endif
