/*
 * Reads JSON from files, with jansson. Duplicate keys, NUL, more than 2,048 levels and values over
 * 1 MiB are rejected, so that memory stays in proportion to the text. Faults are FAULT_DATA or
 * FAULT_MEMORY; the text gives the byte.
 */
#ifndef TOKEND_SHARD_JSON_H
#define TOKEND_SHARD_JSON_H

#include "proto/fault.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one object with nothing after it. NULL: @fault. */
json_t *json_object_of(const char *text, size_t n, struct fault *fault);

/* Takes member @number of the array, which is freed afterwards. False: @fault. */
typedef bool json_visit(void *context, uint64_t number, json_t *value, struct fault *fault);
/*
 * Parses an object whose member @array is a long array: @visit gets its values one by one, and none
 * is kept. *@rest gets the other members; objects and arrays among them become null. It is to be
 * freed with json_decref() in any case. False: @fault.
 */
bool json_each(const char *text, size_t n, const char *array, json_visit *visit, void *context,
	json_t **rest, struct fault *fault);

/* Gets a whole number from 0 to @most. False: @fault, which names @where and @key. */
bool json_number_in(const json_t *object, const char *where, const char *key, uint64_t most,
	uint64_t *value, struct fault *fault);
/* Gets a string, which lives as long as @object. NULL: @fault. */
const char *json_string_in(
	const json_t *object, const char *where, const char *key, struct fault *fault);
/* The type of a value for an error text: "null", "a string", … */
const char *json_kind(const json_t *value);
/* Copies @text as far as it fits, with '?' for unprintable characters. Returns @to. */
const char *json_shown(const char *text, char *to, size_t to_bytes);

#endif
