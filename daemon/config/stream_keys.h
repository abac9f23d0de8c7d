/* The keys of a config's `streams:`. */
#ifndef TOKEND_STREAM_KEYS_H
#define TOKEND_STREAM_KEYS_H

#include "daemon/config/config.h"
#include "daemon/config/schema.h"

/* Reads the mapping into the struct config at @to. */
bool streams_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);

#endif
