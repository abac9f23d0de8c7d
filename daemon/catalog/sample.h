/*
 * Finds shards whose tokens are of another type than the config says, or not below the stream's
 * vocab. Up to SAMPLE_SHARDS shards are sampled when a dataset is opened; other flat shards are
 * sampled when they are first opened to be read. Another type is rejected at once, since all of the
 * shard would be wrong. A token that may not be served is kept in dataset->refused: the stream will
 * stop there, and `tokend --check` fails.
 */
#ifndef TOKEND_SAMPLE_H
#define TOKEND_SAMPLE_H

#include "daemon/catalog/opening.h"

enum { SAMPLE_SHARDS = 64 };

/* Call it after the dataset has been described. False: o->fault. */
bool sample_dataset(const struct opening *o);
/* Checks a shard that is being opened to be read. False: FAULT_DATA, without the path. */
bool sample_opened(const struct dataset *dataset, uint64_t shard, const struct shard *opened,
	struct fault *fault);

#endif
