/* Prometheus metrics over HTTP, served on the control loop: a scrape reads what status reads. */
#ifndef TOKEND_METRICS_H
#define TOKEND_METRICS_H

#include "proto/fault.h"

struct control;
struct metrics;

/*
 * Serves at @fd, a listening TCP socket that it then owns, or if @fd is -1 at @address, "HOST:PORT"
 * with a numeric host ([::1]:9464 for IPv6). NULL with @fault: it cannot; error EAFNOSUPPORT
 * says that all networks are forbidden. On the loop, as metrics_stop().
 */
struct metrics *metrics_start(
	struct control *control, const char *address, int fd, struct fault *fault);
/* Stops and frees it during the next turns of the loop. NULL does nothing. */
void metrics_stop(struct metrics *metrics);

#endif
