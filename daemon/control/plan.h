/* Remarks about a stream: shards that look wrong, the end of its datasets, its schedule. */
#ifndef TOKEND_PLAN_H
#define TOKEND_PLAN_H

#include "daemon/catalog/catalog.h"

/*
 * Passes them to @tell, line by line. @doubt: trainers are warned, because the tokens may not be
 * the ones that are meant.
 */
void plan_tell(const struct stream *s, void *context,
	void (*tell)(void *context, const struct stream *s, bool doubt, const char *text));
/* Logs them. */
void plan_log(const struct stream *s);

#endif
