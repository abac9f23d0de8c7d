/*
 * Shards whose tokens cannot be what the config says: of another type, or not below the stream's
 * vocab. When a dataset is opened, up to SAMPLE_SHARDS of its shards are sampled; of flat ones the
 * others when they are first opened to be read. Another type is refused at once: all of the shard
 * would be wrong. Of a token that may not be served dataset->refused tells: the stream stops there,
 * and `tokend --check` fails.
 */
#ifndef TOKEND_SAMPLE_H
#define TOKEND_SAMPLE_H

#include "daemon/catalog/opening.h"

enum { SAMPLE_SHARDS = 64 };

/* After the dataset was described. False: o->fault. */
bool sample_dataset(const struct opening *o);
/* A shard that is opened to be read. False: FAULT_DATA, without the path. */
bool sample_opened(const struct dataset *dataset, uint64_t shard, const struct shard *opened,
	struct fault *fault);

#endif
