/* How a daemon's reader is opened for its config, and how descriptors are divided. */
#ifndef TOKEND_READING_H
#define TOKEND_READING_H

#include "daemon/catalog/catalog.h"
#include "daemon/reader/reader.h"

struct reading {
	struct reader_options options;
	unsigned sessions; /* clients at most; other descriptors are for shards */
};

/* The part of memory: for the indexes of open shards. 0: no dataset of @catalog has one. */
uint64_t reading_indexes(const struct catalog *catalog);
/* Raises the limit of descriptors. */
struct reading reading_plan(const struct catalog *catalog);

#endif
