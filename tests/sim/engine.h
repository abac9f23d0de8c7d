/* An engine alone: engine.c has its clients and events, engine_share.c a model of its turns. */
#ifndef TOKEND_SIM_ENGINE_H
#define TOKEND_SIM_ENGINE_H

#include "tests/sim/order.h"

#include "daemon/catalog/catalog.h"
#include "daemon/engine/engine.h"

enum {
	STORES = 2, /* queue 0 is local, queue i is store i */
	CLIENTS = 12,
	RUNS = 2,				/* of a user */
	NODES = USERS + USERS * RUNS + CLIENTS, /* the nodes of the tree of turns */
	DEPTH_MAX = 40,
	READS_MAX = (1 + STORES) * DEPTH_MAX,
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
	uint64_t overdue; /* a wake_at that was reached without a byte at the last tick; 0: none */
	uint64_t requested; /* reads begun, without retries */
	uint32_t user, run; /* nodes */
};

struct read {
	struct engine_action action;
	unsigned tries;
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
	bool slow[STREAMS], silent[STREAMS];
	unsigned unanswered[STREAMS]; /* reads begun since one has ended */
	int64_t ahead[NODES][NODES];  /* bytes that a began more than b since both could */
	const struct read *retried;   /* the read whose fault the engine handles now */
	bool storm;		      /* for a while, every fourth read fails */
	/* Counts of this history. */
	uint64_t attached, crashes, slots, waits, faults, retries, failures, shared, cancelled;
};

extern struct rig rig;

/* One history of @events events. */
void engine_history(uint64_t seed, uint64_t events);

static inline uint64_t published(const struct client *c)
{
	return ring_published(&c->ring);
}

/* engine_slot.c */
void engine_fill(
	const struct dataset *d, uint64_t shard, uint64_t token, uint64_t tokens, uint8_t *to);
uint64_t engine_slot_hash(const struct client *c, uint64_t s);
void engine_check_slot(const struct client *c, uint64_t s);

/* engine_share.c */
unsigned queue_of(const struct read *r);
unsigned queue_reads(unsigned queue);
/* Is there room that the daemon knows of? And certainly room for the next read? */
bool share_hungry(const struct client *c);
bool share_free(const struct client *c);
unsigned share_reads(unsigned stream);
/* Reads that the stream may have in flight: a part of what slow and silent streams leave. */
unsigned share_most(unsigned stream);
void share_begun(unsigned stream);
void share_answered(unsigned stream);
void share_charge(const struct client *by, int64_t cost);
/* Accounts end between two nodes of which one cannot go on. */
void share_close(void);
/* @by has begun a read. */
void share_check(const struct client *by);

#endif
