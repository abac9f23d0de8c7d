/*
 * Exit statuses, and lines on stderr. Facts go to stdout, errors to stderr, one line each.
 */
#ifndef TOKEND_CTL_ERROR_H
#define TOKEND_CTL_ERROR_H

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* "tokctl: …" on stderr: a remark, not a failure. */
__attribute__((format(printf, 1, 2))) void ctl_note(const char *text, ...);
/* "tokctl: …" on stderr; always CTL_FAILED. */
__attribute__((format(printf, 1, 2))) int ctl_fail(const char *text, ...);

#endif
