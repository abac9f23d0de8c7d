/* A cursor as one JSON object. */
#ifndef TOKEND_CURSOR_JSON_H
#define TOKEND_CURSOR_JSON_H

#include "proto/cursor.h"

enum { CURSOR_JSON_BYTES = 4 << 20 }; /* enough for every cursor */

/* Writes @cursor and a final 0 to @json. Returns the length without the 0, or 0 if @capacity is too
 * small. */
size_t cursor_json(const struct cursor *cursor, char *json, size_t capacity);

#endif
