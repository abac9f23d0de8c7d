/* Converts faults to public errors, with one line of text. */
#ifndef TOKEND_ERROR_H
#define TOKEND_ERROR_H

#include "client/lib/tokend.h"
#include "proto/fault.h"

enum { ERROR_LINE_BYTES = FAULT_FIELD_BYTES + LIMIT_TEXT_BYTES + 4 };

enum tokend_error error_of(enum fault_code code);
/* Writes "field: text" to @line, unless it is NULL. Returns error_of(fault->code). */
enum tokend_error error_line(const struct fault *fault, char *line, size_t line_bytes);

#endif
