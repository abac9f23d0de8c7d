/* How a daemon's reader is opened for its config, and how descriptors are divided. */
#ifndef TOKEND_READING_H
#define TOKEND_READING_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/reader/reader.h"
#include "daemon/store/store.h"

struct reading {
	struct reader_options options;
	unsigned sessions; /* clients at most; other descriptors are for shards */
	/* Datasets in stores. 0: there are none. */
	unsigned store_queues; /* of the engine */
	unsigned store_depth;  /* of each */
	uint64_t store_bytes;  /* part of memory: for answers of stores */
};

/* Raises the limit of open files as far as it goes. False: it is too small for the daemon. */
bool reading_descriptors(struct fault *fault);
/* The stores of @config's datasets, for a start. @cache: with the config's, which only one process
 * may use. */
struct stores *reading_stores(const struct config *config, bool cache, struct fault *fault);
/* Whether an eighth of memory: is enough for the windows of @catalog. False: @fault. */
bool reading_fits_stores(const struct catalog *catalog, struct fault *fault);
/* Raises the limit of descriptors. @stores: of the catalog's datasets. */
struct reading reading_plan(const struct catalog *catalog, struct stores *stores);
/* Is any of the stream's datasets in a store, and in window mode? */
bool reading_by_window(const struct stream *s);
/* Bytes that reading needs, which count in `memory:`. */
static inline uint64_t reading_memory(const struct reading *reading)
{
	return reader_memory(&reading->options) + reading->store_bytes;
}

/*
 * Lowers memory: to what the cgroup allows. Beyond that, an attach would cause an OOM kill instead
 * of an error. Memory that other processes use now is ignored here: it may be rings of the previous
 * daemon, which trainers release when they attach again. Each attach checks what is left.
 */
void reading_cap_memory(struct config *config, const struct cgroup *cgroup);
/* The engine's queue for reads of @dataset, of @queues queues for stores. */
unsigned reading_queue(const struct dataset *dataset, unsigned queues);

#endif
