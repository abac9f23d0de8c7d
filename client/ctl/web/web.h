#ifndef TOKEND_CTL_WEB_H
#define TOKEND_CTL_WEB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Writes @status (ctl_status_of(); NULL: the daemon does not answer) as text for Prometheus.
 * @sessions: with series for each session. */
void metrics_write(FILE *to, const json_t *status, bool sessions);

#endif
