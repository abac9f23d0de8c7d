/* The config's schedule for a cursor of an edited config. */
#ifndef TOKEND_STREAM_SCHEDULE_H
#define TOKEND_STREAM_SCHEDULE_H

#include "daemon/catalog/catalog.h"

/*
 * Applies the config's schedule and max_epochs to a cursor of this stream, whose list of datasets
 * may be another one: datasets are matched by name. A dataset that the config no longer has gets no
 * weight and keeps its limit; a dataset that only the config has must be added to the cursor before
 * it gets weight. The present mix stays until the first step, unless that is a ramp which has
 * begun: such a ramp starts from the config's weights. Call it after cursor_belongs(). On false
 * *cursor is as it was, and @fault is as config_refuse() fills it.
 */
bool stream_schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault);

#endif
