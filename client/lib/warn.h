/* Warnings of a call that waits: after 2, 10 and 60 s, and when the wait is over. */
#ifndef TOKEND_WARN_H
#define TOKEND_WARN_H

#include "client/lib/handle.h"

void warn_begin(struct warnings *w, int64_t since);
/* The time of the next warning, in ns. */
int64_t warn_at(const struct warnings *w);
/* Whether a warning is due. Each is due once. */
bool warn_due(struct warnings *w);
/* Whole seconds of the wait so far. */
int64_t warn_waited(const struct warnings *w);
/* Calls warn() with "TEXT". Returns 0, or EAGAIN if that ends the call. */
__attribute__((format(printf, 3, 4))) int warn_say(
	struct tokend *t, struct warnings *w, const char *format, ...);
/* The wait is over: if warn() was called, says so. Returns 0 or EAGAIN. */
int warn_over(struct tokend *t, struct warnings *w);

#endif
