/* The config's schedule for a cursor of an edited config. */
#ifndef TOKEND_STREAM_SCHEDULE_H
#define TOKEND_STREAM_SCHEDULE_H

#include "daemon/catalog/catalog.h"

/*
 * The config's plan for a cursor whose list of datasets may be another one: cursor_schedule() with
 * the schedule's weights and the max_epochs of the datasets, matched by name. A dataset that the
 * config no longer has gets no weight and keeps its limit; one that only the config has may be
 * given weight only once the cursor has it. The mix that is in force stays until the first step,
 * but for a schedule that starts with a ramp which has begun: that one comes from the config's
 * weights. Call after cursor_belongs(). On false, *cursor is as it was, and @why has one line that
 * starts "FILE:LINE: ".
 */
bool stream_schedule(
	const struct stream *stream, struct cursor *cursor, char *why, size_t why_bytes);

#endif
