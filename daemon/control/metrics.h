/* Prometheus metrics over HTTP, served on the control loop: a scrape reads what status reads. */
#ifndef TOKEND_METRICS_H
#define TOKEND_METRICS_H

#include "proto/fault.h"

struct control;
struct metrics;

/* Listens at @address, "HOST:PORT" (a numeric host; [::1]:9464 for IPv6). NULL: it
 * cannot. */
struct metrics *metrics_start(struct control *control, const char *address, struct fault *fault);
/* Frees it, its handles with the loop's next turns. NULL is fine. */
void metrics_stop(struct metrics *metrics);

#endif
