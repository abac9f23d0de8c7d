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
/*
 * Whether the config's weights have no effect on a run that is at @c, with both mixes in @text:
 * they were edited since the run began. False for a run whose mix has changed since then, by an
 * operator or a schedule.
 */
bool plan_mix_differs(const struct stream *s, const struct cursor *c, const char *run, char *text,
	size_t text_bytes);

#endif
