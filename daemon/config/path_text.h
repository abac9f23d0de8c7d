/* Values that are paths. */
#ifndef TOKEND_PATH_TEXT_H
#define TOKEND_PATH_TEXT_H

#include "daemon/config/schema.h"

/*
 * A taker, as schema_text(). Refuses what only shells and other loaders understand: ~, $NAME and
 * URLs. Nothing is expanded, because daemon, trainers and tokctl read one config as other users.
 */
bool path_text(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);
/* The same, but URLs of objects are paths, too; stores_check() checks them. */
bool path_or_url(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);

#endif
