/* How a daemon's reader is opened for its config, and how descriptors are divided. */
#ifndef TOKEND_READING_H
#define TOKEND_READING_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/reader/reader.h"
#include "daemon/store/store.h"

struct reading {
	struct reader_options options;
	char note[LIMIT_TEXT_BYTES]; /* as reader_open() */
	unsigned sessions;	     /* clients at most; other descriptors are for shards */
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
/* Whether a daemon could use the config's cache, also if one does. Waits for its disk. */
bool reading_fits_cache(const struct config *config, struct fault *fault);
/* Opens the reader of @catalog, and fills @reading. @stores: of its datasets. NULL: @fault. */
struct reader *reading_open(const struct catalog *catalog, struct stores *stores,
	struct reading *reading, struct fault *fault);
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
