/* An engine alone: engine.c has its clients and events, engine_share.c a model of its turns. */
#ifndef TOKEND_SIM_ENGINE_ALONE_H
#define TOKEND_SIM_ENGINE_ALONE_H

#include "tests/sim/plan.h"

#include "daemon/catalog/catalog.h"
#include "daemon/engine/engine.h"

enum {
	STORES = 2, /* place 0 is local, place i is store i */
	CLIENTS = 12,
	DEPTH_MAX = 40,
	READS_MAX = (1 + STORES) * (DEPTH_MAX + STREAMS),
	ROWS_MAX = 6,
	SLOTS_MAX = 9,
	WINDOW_MAX = 24,
};

struct client {
	enum { ABSENT, RUNNING, FAILED, LEAVING } state;
	struct feed *feed;
	unsigned stream;
	struct cursor cursor; /* at the attach */
	uint64_t rank, world, end;
	struct ring ring;
	void *meta, *data;

	uint64_t taken, released, answered;
	uint64_t seen[SLOTS_MAX];	    /* hashes of the slots that it keeps */
	bool reading[SLOTS_MAX * ROWS_MAX]; /* reads in flight, by ring row */
	bool asleep, stalled;
	bool kick, old_kick; /* a byte to the daemon is on its way; already at the last tick */
	bool lost_kick;	     /* the simulator dropped one */
	bool wake;	     /* a byte from the daemon is on its way */
	bool told;	     /* FAILED was reported */
	uint64_t requested;  /* reads begun */
	uint32_t user;
};

struct read {
	struct engine_action action;
	bool cancelled;
};

struct rig {
	struct engine *engine;
	struct engine_actions out;
	unsigned depth, store_depth;
	bool stores;	       /* some datasets are in stores */
	bool hung[1 + STORES]; /* the store does not answer */
	struct catalog *catalog;
	struct feed_source source[STREAMS][DATASETS];
	struct client client[CLIENTS];
	struct read read[READS_MAX];
	unsigned reads;
	bool slow[STREAMS];		 /* its local storage does not answer */
	bool full[1 + STORES][STREAMS];	 /* feeds may wait for the stream's share of the place */
	int64_t ahead[CLIENTS][CLIENTS]; /* bytes that a began more than b since both could */
	bool storm;			 /* for a while, every fourth read fails */
	/* Counts of this history. */
	uint64_t attached, crashes, slots, waits, faults, failures, shared, cancelled;
};

extern struct rig rig;

/* One history of @events events. */
void engine_history(uint64_t seed, uint64_t events);

/* engine_counts.c; after the streams of a history were made */
void engine_counts(void);

static inline uint64_t published(const struct client *c)
{
	return ring_published(&c->ring);
}

/* engine_slot.c */
void engine_fill(
	const struct dataset *d, uint64_t shard, uint64_t token, uint64_t tokens, uint8_t *to);
uint64_t engine_slot_hash(const struct client *c, uint64_t s);
void engine_check_slot(const struct client *c, uint64_t s);
void *engine_map(uint64_t bytes);

/* engine_share.c */
unsigned place_of(const struct read *r);
/* Is there room that the daemon knows of? And certainly room for the next read? */
bool share_hungry(const struct client *c);
bool share_free(const struct client *c);
/* Before a read is added to rig.read, after one was removed, and after a step. */
void share_begun(unsigned place, unsigned stream);
void share_ended(unsigned place, unsigned stream);
void share_stepped(void);
void share_charge(const struct client *by, int64_t cost);
/* Accounts end between two nodes of which one cannot go on. */
void share_close(void);
/* @by has begun a read. */
void share_check(const struct client *by);

#endif
