/*
 * Parses JSON with jansson. Rejects duplicate keys, NUL and more than 2,048 levels. Faults are
 * FAULT_DATA or FAULT_MEMORY; syntax errors give the byte.
 */
#ifndef TOKEND_SHARD_JSON_H
#define TOKEND_SHARD_JSON_H

#include "proto/fault.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parses one object, which must end with the text. The caller frees it. NULL: @fault. */
json_t *json_object_of(const char *text, size_t n, struct fault *fault);

/* The type of a value, for messages: "null", "a string", … NULL: "missing". */
const char *json_kind(const json_t *value);

#endif
