/* `tokctl inspect --from`: a manifest of objects, from that of the files that were uploaded. */
#ifndef TOKEND_CTL_INSPECT_FROM_H
#define TOKEND_CTL_INSPECT_FROM_H

#include "client/ctl/offline/inspect_file.h"

/*
 * Adds the lines of the manifest @from to in->manifest, with size and ETag of the objects below
 * @url. Reads no shard, except for sums that are not next to @from; with in->deep, it reads all,
 * and compares them with @from. Reports each object that is missing, differs, or is not in @from.
 */
void inspect_from(struct inspect *in, const char *from, const char *url);

#endif
