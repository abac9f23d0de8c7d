/*
 * Counters for metrics, since the start of the daemon or its last reload.
 * Each counter has one writer, the data thread or the control thread. Others may read it at any
 * time, so no read-modify-write and no lock is needed.
 */
#ifndef TOKEND_COUNTS_H
#define TOKEND_COUNTS_H

#include "daemon/catalog/catalog.h"

#include <stdatomic.h>

enum { COUNTS_BUCKETS = 17 };

struct histogram {
	_Atomic uint64_t bucket[COUNTS_BUCKETS + 1]; /* not cumulative; the last has no limit */
	_Atomic uint64_t sum_ns;
};

/* The upper limits of the buckets. */
extern const uint64_t histogram_most_ns[COUNTS_BUCKETS];

static inline uint64_t count_of(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void count_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, count_of(counter) + n, memory_order_relaxed);
}

void histogram_add(struct histogram *h, uint64_t ns);

struct stream_counts {
	/* the data thread's */
	struct histogram waits; /* of trainers for a batch, from about 20 µs on */
	struct histogram reads; /* from the plan of a row to its last byte in the ring */
	_Atomic uint64_t read_bytes;
	_Atomic uint64_t read_faults[FAULT_CODES];

	/* the control thread's */
	uint64_t attaches, attaches_again;
	uint64_t published, released; /* batches of sessions that have ended */
	uint64_t snapshots, snapshots_failed;
	int64_t snapshot_s, snapshot_failed_s; /* when that happened last, Unix time; 0: never */
};

enum { COUNTS_KINDS = 6 };
enum counts_outcome {
	COUNTS_DONE,
	COUNTS_FAILED,
	COUNTS_REFUSED,
	COUNTS_TAKEN_BACK,
	COUNTS_OUTCOMES
};

/* The control thread's, except as said. */
struct counts {
	struct stream_counts *streams; /* of each */
	_Atomic uint64_t *samples;     /* of each dataset, read into rings; the data thread's */
	uint64_t requests[COUNTS_KINDS][COUNTS_OUTCOMES]; /* kinds: counts_kind() */
	uint64_t reloads, reloads_failed;
	int64_t reload_s;   /* when the config in use was loaded, Unix time */
	bool reload_failed; /* the last one: an older config is in use */
};

/* Connects the streams and datasets of @catalog with their counters. False: out of memory; call
 * counts_free() in any case. */
bool counts_join(struct counts *counts, const struct catalog *catalog);
void counts_free(struct counts *counts);
/* Counts a request that ended. @kind: as it was sent. */
void counts_request(struct counts *counts, const char *kind, enum counts_outcome outcome);
/* The names of kinds; the last is "other". */
extern const char *const counts_kind[COUNTS_KINDS];

#endif
