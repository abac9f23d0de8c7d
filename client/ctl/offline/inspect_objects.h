/* `tokctl inspect` of shards in a store. */
#ifndef TOKEND_CTL_INSPECT_OBJECTS_H
#define TOKEND_CTL_INSPECT_OBJECTS_H

#include "client/ctl/offline/inspect_file.h"

/*
 * Reads the shards at @url, many at once, and reports them in the order of their names. With @from,
 * as inspect_from().
 */
void inspect_objects(struct inspect *in, const char *url, const char *from);

#endif
