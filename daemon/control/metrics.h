/* The daemon's state as text for Prometheus. It contains what status reads, and more. */
#ifndef TOKEND_METRICS_H
#define TOKEND_METRICS_H

#include <stdio.h>

struct control;

/* On the loop. */
void metrics_write(struct control *control, FILE *to);

#endif
