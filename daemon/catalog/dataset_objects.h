/* The shards and side files of a dataset in a store, as its manifest lists them. */
#ifndef TOKEND_DATASET_OBJECTS_H
#define TOKEND_DATASET_OBJECTS_H

#include "daemon/catalog/dataset.h"
#include "daemon/catalog/manifest.h"

struct dataset_objects {
	struct objects objects;
	const struct store_bucket *bucket;
	size_t key_bytes;	 /* as in struct manifest */
	struct shard_list sides; /* the same */
};

/* Takes the objects of @manifest; dataset_close() frees them. False: out of memory. */
bool dataset_objects_take(
	struct dataset *dataset, struct manifest *manifest, struct stores *stores);

#endif
