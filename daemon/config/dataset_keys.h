/* The keys of a stream's `datasets:`. */
#ifndef TOKEND_DATASET_KEYS_H
#define TOKEND_DATASET_KEYS_H

#include "daemon/config/config.h"
#include "daemon/config/schema.h"

/* Reads the list into the struct config_stream at @to. */
bool datasets_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);

#endif
