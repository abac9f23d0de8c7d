/* When the order needs a part of a shard next. Pure; costs about as much as looking up the windows
 * of the part one by one. */
#ifndef TOKEND_NEXT_USE_H
#define TOKEND_NEXT_USE_H

#include "proto/table.h"

/*
 * The least position, ≥ @from, that needs any of the tokens [@token, @token + @tokens) of @shard of
 * @dataset. UINT64_MAX: none in this epoch and the next. Of small datasets, as many epochs count as
 * two blocks of 1024 contain. At most @most windows are looked up, in even distances, so that the
 * result may be too late.
 */
uint64_t next_use(const struct order *order, uint32_t dataset, const struct table *table,
	uint64_t from, uint64_t shard, uint64_t token, uint64_t tokens, uint64_t most);

#endif
