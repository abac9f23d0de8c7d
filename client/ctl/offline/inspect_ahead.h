/* Shards of a store, read by many threads. */
#ifndef TOKEND_CTL_INSPECT_AHEAD_H
#define TOKEND_CTL_INSPECT_AHEAD_H

#include "client/ctl/offline/inspect_file.h"

/* Reads the shards that @l means, many at once, and reports them in the order of their names.
 * @url: of the listing. */
void inspect_ahead(struct inspect *in, const struct ctl_listing *l, const char *url);

#endif
