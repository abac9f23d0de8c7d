/* Breaks help texts into lines. */
#ifndef TOKEND_WRAP_H
#define TOKEND_WRAP_H

#include <stddef.h>

enum { WRAP_COLUMNS = 100 };

/*
 * Returns the bytes of the first line of @text, without the space at which it is broken: as many
 * words as fit @columns, but at least one. "[--count N]" is one word. The next line begins after
 * the spaces.
 */
size_t wrap_line(const char *text, size_t columns);

#endif
