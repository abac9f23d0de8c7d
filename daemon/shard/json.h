/*
 * JSON that others wrote, by jansson: no key twice, no NUL, at most 2,048 levels and 1 MiB a value,
 * so that no text takes memory out of proportion. Faults are one printable line with the byte at
 * which they are.
 */
#ifndef TOKEND_SHARD_JSON_H
#define TOKEND_SHARD_JSON_H

#include "proto/fault.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One object, and nothing else. NULL: @why. */
json_t *json_object_of(const char *text, size_t n, struct fault *fault);

/* Member @number of the array; it is freed afterwards. False: @why. */
typedef bool json_visit(void *context, uint64_t number, json_t *value, struct fault *fault);
/*
 * An object whose member @array is an array that may be long: @visit sees its values one by one,
 * none of them is kept. What else is in it comes in *@rest, to be freed with json_decref() whatever
 * is returned; long values are left out. False: @why.
 */
bool json_each(const char *text, size_t n, const char *array, json_visit *visit, void *context,
	json_t **rest, struct fault *fault);

/* A whole number from 0 to @most. False: @why, which calls it @where and @key. */
bool json_number_in(const json_t *object, const char *where, const char *key, uint64_t most,
	uint64_t *value, struct fault *fault);
/* A string; lives as long as @object. NULL: @why. */
const char *json_string_in(
	const json_t *object, const char *where, const char *key, struct fault *fault);
/* What a value is, for an error text: "null", "a string", … */
const char *json_kind(const json_t *value);
/* @text as far as it fits @to, with '?' for what cannot be printed. Returns @to. */
const char *json_shown(const char *text, char *to, size_t to_bytes);

#endif
