/* Exit statuses; messages on stderr, one line each; time and memory. Results go to stdout. */
#ifndef TOKEND_CTL_ERROR_H
#define TOKEND_CTL_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* Prints "tokctl: …" to stderr: a remark, not a failure. */
__attribute__((format(printf, 1, 2))) void ctl_note(const char *text, ...);
/* Prints "tokctl: …" to stderr. Always CTL_FAILED. */
__attribute__((format(printf, 1, 2))) int ctl_fail(const char *text, ...);

/* CLOCK_MONOTONIC in ns, and in ms. */
uint64_t ctl_clock_ns(void);
uint64_t ctl_clock_ms(void);

/* Makes room for one more item of @bytes in *@array, which has @n items and grows by doubling. On
 * failure prints a message and returns false. */
bool ctl_grow(void **array, size_t n, size_t bytes);

#endif
