/* Remarks about a stream: shards that look wrong, the end of its datasets, its schedule. */
#ifndef TOKEND_PLAN_H
#define TOKEND_PLAN_H

#include "daemon/catalog/catalog.h"

/* Passes them to @tell, line by line. */
void plan_tell(const struct stream *s, void (*tell)(const struct stream *s, const char *text));
/* Logs them. */
void plan_log(const struct stream *s);

#endif
