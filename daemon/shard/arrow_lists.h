/*
 * The lists of a record batch: each is a document.
 */
#ifndef TOKEND_SHARD_ARROW_LISTS_H
#define TOKEND_SHARD_ARROW_LISTS_H

#include "daemon/shard/arrow_batch.h"
#include "daemon/shard/spans.h"

/*
 * Reads and checks all offsets of the batch that arrow_next() returned, and appends a span for each
 * list. Requires that null lists are empty. False: a->fault.
 */
bool arrow_add_lists(struct arrow *a, const struct arrow_batch *batch, struct spans *spans);

#endif
