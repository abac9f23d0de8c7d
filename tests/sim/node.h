/* A node: its storage, its disk for state_dir, and its daemon, which is server_run(). */
#ifndef TOKEND_SIM_NODE_H
#define TOKEND_SIM_NODE_H

#include "tests/sim/world.h"

#include "proto/cursor.h"

enum {
	NODES_MOST = 8,
	STREAMS = 3,
	DATASETS = 5,
	SHARDS = 4,
	USERS = 2, /* uids 1000, 1001 */
	STAMP_TOKENS = 8,
};

/* Reads of shards. */
struct storage {
	int64_t latency;    /* ns, most */
	unsigned slow, eio; /* one read in so many; 0: never */
	int64_t stalled_until;
	int64_t failed_at[STREAMS]; /* the last fault of a read; 0: none */
};

struct node {
	unsigned number;
	char socket[64];
	struct proc *daemon; /* NULL: none is running */
	struct disk *disk;
	struct disk_faults disk_faults;
	struct storage storage;
	unsigned version; /* of the config that its daemon has */
	uint64_t memory_bytes;
	/* One that stops while the next one may serve already. */
	struct proc *old;
	int64_t stopped_since;
};

/* A dataset of the world, the same on all nodes. */
struct source {
	char name[8];
	uint64_t key; /* its digest, and the seed of its tokens */
	uint64_t shards, tokens[SHARDS];
	uint64_t lo, hi; /* its part of them, in 2^32nds */
	double weight;
	uint32_t block, group;
	enum order_shuffle shuffle;
	bool slide;
};

struct stream_plan {
	char name[8];
	uint64_t seed, seq_len, extra, stride, epochs, samples;
	uint32_t token_bytes, datasets, first_datasets; /* those of config version 0 */
	struct source source[DATASETS];
};

struct world_counts {
	uint64_t reads, eio, batches, rows, padding, attaches, reattached, checkpoints, snapshots,
		restored, restarts, daemon_kills, daemon_stops, trainer_kills, job_kills,
		power_cuts, severed, requests, mixes, skips, drains, rescales, answered, failed,
		cancelled, finished, disk_errors, clock_jumps, refused, additions, undone, passes,
		strangers, operator_kills, no_room, foreigners, faults, interrupts, stalls,
		committed;
};

extern struct world_counts world_counts;
extern bool world_stamps; /* only the first tokens of a window are made and checked */
extern struct node world_node[NODES_MOST];
extern unsigned world_nodes;
extern struct stream_plan world_stream[STREAMS];
extern unsigned world_version; /* of the config: 0, or 1 with all datasets */

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);
void __wrap_free(void *at);

struct reader *storage_reader(struct node *node);
uint32_t storage_token(uint64_t key, uint64_t shard, uint64_t token);

/* What a daemon with this version of the config opens. */
struct catalog *catalog_make(unsigned version, uint64_t memory);
/* Invents the streams. */
void streams_make(void);
void node_make(struct node *node, unsigned number);
void node_free(struct node *node);
void node_start(struct node *node);
/* SIGTERM. It must end within 15 s, and leave nothing. False: there is none that serves. */
bool node_stop(struct node *node);
void node_kill(struct node *node);
/* Does its daemon have another config than a new one would? */
bool node_old_config(const struct node *node);
/* The daemons of a config version serve so many datasets. */
uint32_t stream_datasets(const struct stream_plan *s, unsigned version);

#endif
