/* The monotonic clock. */
#ifndef TOKEND_CTL_CLOCK_H
#define TOKEND_CTL_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in ns, and in ms. */
uint64_t ctl_clock_ns(void);
uint64_t ctl_clock_ms(void);

#endif
