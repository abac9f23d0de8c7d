/* The present state of all sessions, for metrics and the status line. On the loop. */
#ifndef TOKEND_GAUGES_H
#define TOKEND_GAUGES_H

struct control;
struct stream_gauges;

/* Updates `now` of the counters of all streams. Returns the sums over all streams. */
struct stream_gauges gauges_update(struct control *control);

#endif
