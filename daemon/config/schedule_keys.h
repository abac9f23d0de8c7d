/* The keys of a stream's `schedule:`. */
#ifndef TOKEND_SCHEDULE_KEYS_H
#define TOKEND_SCHEDULE_KEYS_H

#include "daemon/config/config.h"
#include "daemon/config/schema.h"

#define CONFIG_SCHEDULE_RIGHT                                                                      \
	"a list of {at: POSITION, weights: {…}} or {from: POSITION, to: POSITION, steps: N, "    \
	"weights: {…}}"

/*
 * Reads @node into stream->step. A schedule names datasets that may come after it in the file, so
 * call it after stream->dataset and stream->schedule_line are set.
 */
bool schedule_take(struct schema *s, yaml_node_t *node, struct config_stream *stream);

#endif
