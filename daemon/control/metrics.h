/* Prometheus metrics over HTTP, served on the control loop: a scrape reads what status reads. */
#ifndef TOKEND_METRICS_H
#define TOKEND_METRICS_H

#include <stdbool.h>
#include <stddef.h>

struct control;
struct metrics;

/* Listens at @address, "HOST:PORT" (a numeric host; [::1]:9464 for IPv6). NULL with one line in
 * @why. */
struct metrics *metrics_start(
	struct control *control, const char *address, char *why, size_t why_bytes);
/* Frees it, its handles with the loop's next turns. NULL is fine. */
void metrics_stop(struct metrics *metrics);

#endif
