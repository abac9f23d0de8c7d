/* For messages about a mistyped name: the known name most similar to it, and a list of all. */
#ifndef TOKEND_NEAREST_H
#define TOKEND_NEAREST_H

#include <stddef.h>

enum { NEAREST_LIST_BYTES = 512 };

/*
 * The element of @known most similar to @text: at most two letters (in long names a third of them)
 * inserted, dropped, replaced, or swapped with the next one. NULL if none is. Of equals, the first.
 */
const char *nearest(const char *text, const char *const *known, size_t n);
/*
 * Writes the first names, "web, code and 20 more", and if one is similar to @text its name: "web,
 * code; did you mean code?". Returns @list.
 */
char *nearest_list(
	char list[NEAREST_LIST_BYTES], const char *text, const char *const *known, size_t n);

#endif
