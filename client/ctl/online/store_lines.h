/* The lines about stores and the cache in `tokctl status` and `tokctl top`. */
#ifndef TOKEND_CTL_STORE_LINES_H
#define TOKEND_CTL_STORE_LINES_H

#include <jansson.h>
#include <stdbool.h>

enum { STORE_LINE_BYTES = 600 };

/* Calls @each with a line per store of a status, and with one for the cache. */
void store_lines(
	const json_t *status, void (*each)(void *context, const char *line), void *context);

#endif
