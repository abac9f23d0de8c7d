/* Applies the schedule of an edited config to a cursor. */
#ifndef TOKEND_STREAM_SCHEDULE_H
#define TOKEND_STREAM_SCHEDULE_H

#include "daemon/catalog/catalog.h"

/*
 * Applies the config's schedule and max_epochs to a cursor of this stream. The cursor's datasets
 * may differ from the config's; they are matched by name. A dataset that the config no longer has
 * gets no weight and keeps its limit. A dataset that only the config has must be added to the
 * cursor before it gets weight.
 *
 * The current mix lasts until the first step. If the first step is a ramp that has begun, the ramp
 * starts from the config's weights. Call it after cursor_belongs(). On failure returns false,
 * leaves *cursor unchanged, and fills @fault as config_refuse().
 */
bool stream_schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault);

#endif
