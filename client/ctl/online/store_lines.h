/* The lines about stores and the cache in `tokctl status` and `tokctl top`. */
#ifndef TOKEND_CTL_STORE_LINES_H
#define TOKEND_CTL_STORE_LINES_H

#include "proto/wire.h"

enum { STORE_LINE_BYTES = 600 };

/* Calls @each with a line per store of the daemon, and with one for its cache. @w: the totals of a
 * status. */
void store_lines(
	const struct wire *w, void (*each)(void *context, const char *line), void *context);
/* The members "stores" and "cache" as JSON, with a comma before each; null: an older daemon. The
 * caller frees it. NULL: out of memory. */
char *store_members(const struct wire *w);
/* "waiting 12 s for s3://corpus/web/: 503 SlowDown". False: the session @w does not wait. */
bool store_wait_line(const struct wire *w, char line[STORE_LINE_BYTES]);

#endif
