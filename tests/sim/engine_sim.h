/* The simulated world, and the functions that its files share. See engine_sim.c. */
#ifndef TOKEND_ENGINE_SIM_H
#define TOKEND_ENGINE_SIM_H

#include "daemon/engine/engine.h"
#include "daemon/engine/turns.h"

#include "tests/unit/rng.h"

enum {
	STREAMS = 3,
	DATASETS = 5,
	SHARDS = 4,
	STORES = 2, /* queue 0 is local, queue i is store i */
	CLIENTS = 12,
	USERS = 3,
	RUNS = 2,				/* of a user */
	NODES = USERS + USERS * RUNS + CLIENTS, /* the nodes of the tree of turns */
	DEPTH_MAX = 40,
	READS_MAX = (1 + STORES) * DEPTH_MAX,
	ROWS_MAX = 6,
	SLOTS_MAX = 9,
	WINDOW_MAX = 24,
	GRAVES = 64,
	TRIES = 3,
	EOS = 777,
};

struct dataset {
	struct table table;
	uint64_t tokens[SHARDS], first[SHARDS + 1];
	unsigned queue; /* of its reads */
	uint64_t key;	/* seed of its tokens */
	uint32_t often; /* about one token in so many is EOS; 0: only by chance */
};

struct stream {
	struct cursor begin;
	struct dataset dataset[DATASETS];
	struct feed_source source[DATASETS];
	uint32_t token_bytes;
	unsigned annotations; /* RING_DOCUMENTS, RING_LOSS_MASK */
};

struct client {
	enum { ABSENT, RUNNING, FAILED, LEAVING } state;
	struct feed *feed;
	const struct stream *stream;
	struct cursor cursor; /* at the attach */
	uint64_t rank, world, end;
	struct ring ring;
	void *meta, *data;

	uint64_t taken, released, answered;
	uint64_t seen[SLOTS_MAX];	    /* hashes of the slots that it keeps */
	bool reading[SLOTS_MAX * ROWS_MAX]; /* reads in flight, by ring row */
	bool asleep, hostile, stalled;
	bool kick, old_kick; /* a byte to the daemon is on its way; already at the last tick */
	bool lost_kick;	     /* the simulator dropped one */
	bool wake;	     /* a byte from the daemon is on its way */
	bool told;	     /* FAILED or HOSTILE was reported */
	uint64_t found;	     /* lost wake-ups that the engine found */
	uint64_t overdue; /* a wake_at that was reached without a byte at the last tick; 0: none */
	uint64_t requested; /* reads begun, without retries */
	uint32_t user, run; /* nodes */
};

struct read {
	struct engine_action action;
	unsigned tries;
	bool cancelled;
};

struct grave {
	void *at;
	uint64_t bytes;
};

struct engine_counts {
	uint64_t events, attached, slots, rows, padding, ended, waits, faults, retries, failures,
		hostile, ticks, lost, crashes, documents, labels, shared, slow, away, hung,
		cancelled;
};

struct sim {
	struct rng rng;
	uint64_t seed, trace;
	struct engine *engine;
	struct engine_actions out;
	unsigned depth, store_depth;
	bool stores;	       /* some datasets are in stores */
	bool hung[1 + STORES]; /* the store does not answer */
	struct stream stream[STREAMS];
	struct client client[CLIENTS];
	struct read read[READS_MAX];
	unsigned reads;
	bool slow[STREAMS];
	bool silent[STREAMS];
	unsigned unanswered[STREAMS]; /* reads begun since one has ended */
	int64_t ahead[NODES][NODES];  /* bytes that a began more than b since both could */
	const struct read *retried;   /* the read whose fault the engine handles now */
	bool storm;		      /* for a while, every fourth read fails */
	struct grave grave[GRAVES];
	unsigned graves;
	struct engine_counts counts;
};

#define CHECK(sim, what) ((what) ? (void)0 : sim_broken(sim, #what, __LINE__))
__attribute__((noreturn)) void sim_broken(const struct sim *sim, const char *what, int line);

static inline uint64_t below(struct sim *sim, uint64_t n)
{
	return rng_below(&sim->rng, n);
}

static inline bool one_in(struct sim *sim, uint64_t n)
{
	return below(sim, n) == 0;
}

static inline void trace(struct sim *sim, uint64_t what, uint64_t a, uint64_t b)
{
	sim->trace = order_derive(sim->trace, what, a, b);
}

static inline uint32_t id_of(const struct sim *sim, const struct client *c)
{
	return (uint32_t)(c - sim->client);
}

static inline struct client *client_of(struct sim *sim, uint32_t id)
{
	CHECK(sim, id < CLIENTS);
	CHECK(sim, sim->client[id].state != ABSENT);
	return &sim->client[id];
}

static inline uint64_t published(const struct client *c)
{
	return ring_published(&c->ring);
}

/* ---- engine_stream.c: streams are tables without files; a token is a function of its place ----
 */

void stream_make(struct sim *sim, struct stream *s);
struct cursor stream_cursor(struct sim *sim, const struct stream *s);
void stream_tokens(const struct dataset *d, uint64_t shard, uint64_t token, uint64_t n,
	uint32_t bytes, uint8_t *to);
void stream_annotations(const struct engine_action *a, uint32_t bytes, bool bad);
void stream_locate(const struct dataset *d, const struct order_dataset *o, uint64_t seed,
	const struct order_place *p, uint64_t *shard, uint64_t *offset);

/* ---- engine_client.c: a client, its memory, and the check of its slots ---- */

void client_make(struct sim *sim, struct client *c);
void client_bury(struct sim *sim, struct client *c);
uint64_t client_slot_hash(const struct client *c, uint64_t s);
void client_check_slot(struct sim *sim, const struct client *c, uint64_t s);

/* ---- engine_share.c: the shares of streams in the reads in flight, and turns ---- */

bool share_hungry(const struct client *c);
unsigned share_reads(const struct sim *sim, const struct stream *s);
unsigned share_most(const struct sim *sim, const struct stream *s);
void share_begun(struct sim *sim, const struct stream *s);
void share_answered(struct sim *sim, const struct stream *s);
bool share_slow(const struct sim *sim, const struct stream *s);
bool share_free(const struct sim *sim, const struct client *c);
unsigned queue_reads(const struct sim *sim, unsigned queue);
void share_close(struct sim *sim);
void share_charge(struct sim *sim, const struct client *by, int64_t cost);
void share_check(struct sim *sim, const struct client *by);

/* ---- engine_step.c: the engine and its actions ---- */

void step_check_target(struct sim *sim, const struct client *c, const struct engine_action *a);
void step(struct sim *sim, struct engine_event event);

/* ---- engine_behave.c: the events of disk, clock and clients ---- */

void client_attach(struct sim *sim, struct client *c);
void client_detach(struct sim *sim, struct client *c);
void some_read(struct sim *sim, unsigned faults);
void client_turn(struct sim *sim, struct client *c);
void client_kick(struct sim *sim, struct client *c);
void client_wake(struct client *c);
void look(struct sim *sim);
void tick(struct sim *sim);
void client_lie(struct sim *sim, struct client *c);

#endif
