/* The keys of `stores:` and `cache:`, and what they mean for the datasets. */
#ifndef TOKEND_STORE_KEYS_H
#define TOKEND_STORE_KEYS_H

#include "daemon/config/config.h"
#include "daemon/config/schema.h"

/* Reads the mapping into the struct config at @to. */
bool stores_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);
/* The same for `cache:`. */
bool cache_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);
/* Checks the URLs of all datasets, and how they are fetched, after the whole config is read. */
bool stores_check(struct schema *s, const struct config *config);

#endif
