/* Exit statuses, and messages on stderr, one line each. Results go to stdout. */
#ifndef TOKEND_CTL_ERROR_H
#define TOKEND_CTL_ERROR_H

#include <stddef.h>

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* Prints "tokctl: …" to stderr: a remark, not a failure. */
__attribute__((format(printf, 1, 2))) void ctl_note(const char *text, ...);
/* Prints "tokctl: …" to stderr. Always CTL_FAILED. */
__attribute__((format(printf, 1, 2))) int ctl_fail(const char *text, ...);

#endif
