/*
 * Samples shards for tokens of another type than the config's, or not below the stream's vocab. Up
 * to SAMPLE_SHARDS shards are sampled when a dataset is opened; `tokctl inspect --deep` looks at
 * all, and `tokctl manifest` did. A wrong type is an error, because all tokens of the shard
 * would be wrong. A token that may not be served is only recorded in dataset->refused: the stream
 * will stop there, and `tokend --check` fails.
 * A hash of all samples lets ranks notice nodes with other tokens under the same names.
 */
#ifndef TOKEND_SAMPLE_H
#define TOKEND_SAMPLE_H

#include "daemon/catalog/opening.h"

enum { SAMPLE_SHARDS = 64 };

/* Samples a dataset whose shards have been described. False: o->fault. */
bool sample_dataset(const struct opening *o);

#endif
