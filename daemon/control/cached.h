/* `tokctl cache`: what is in the cache, by dataset, and removing a dataset from it. */
#ifndef TOKEND_CACHED_H
#define TOKEND_CACHED_H

#include "daemon/control/connection.h"

/* Handles WIRE_CACHE. On the loop. */
void cached_query(struct connection *c, const struct wire *w);

#endif
