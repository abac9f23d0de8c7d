/*
 * Cursors as values: decode, edit, encode; or decode and print as JSON. No session is needed.
 */

#include "client/lib/handle.h"
#include "proto/cursor.h"
#include "proto/cursor_json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- edits ---- */

/* Writes the cursor if it was edited, and frees it. On failure @to, which may be the cursor that
 * was read, is unchanged. */
static int64_t finish(
	const struct tokend_edit *e, struct cursor *cursor, bool edited, struct fault *fault)
{
	void *bytes = edited ? malloc(LIMIT_CURSOR_BYTES) : NULL;
	size_t n = bytes ? cursor_encode(cursor, bytes, LIMIT_CURSOR_BYTES) : 0;
	int64_t result = 0;

	cursor_free(cursor);
	if (n > 0 && n <= e->capacity) {
		memcpy(e->to, bytes, n);
		result = (int64_t)n;
	} else if (n > 0) {
		fault_set(fault, FAULT_MEMORY, "capacity",
			"%zu bytes are too few for the cursor of %zu", e->capacity, n);
	} else if (edited) {
		fault_memory(fault);
	}
	free(bytes);
	return result > 0 ? result : error_line(fault, e->why, e->why_bytes);
}

int64_t tokend_cursor_seek(const struct tokend_edit *e, uint64_t position)
{
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	return finish(e, &c, cursor_seek(&c, position, &fault), &fault);
}

int64_t tokend_cursor_skip(const struct tokend_edit *e, uint64_t samples)
{
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	return finish(e, &c, cursor_skip(&c, samples, &fault), &fault);
}

int64_t tokend_cursor_rewind(const struct tokend_edit *e, uint64_t position)
{
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	return finish(e, &c, cursor_rewind(&c, position, &fault), &fault);
}

/* Index of @name; otherwise -1 and @fault, which lists the datasets. */
static int find(const struct cursor *c, const char *name, struct fault *fault)
{
	char field[sizeof(fault->field)], list[NEAREST_LIST_BYTES];
	int d = cursor_find(c, name);

	if (d >= 0)
		return d;
	snprintf(field, sizeof(field), "dataset %.*s", LIMIT_NAME_BYTES, name);
	fault_set(fault, FAULT_ARGUMENT, field, "is not in the cursor; must be one of: %s",
		cursor_list_datasets(c, name, list));
	return -1;
}

/* @weights of all datasets: @given for @names, 0 for the others. */
static bool weights_of(const struct cursor *c, const char *const *names, const double *given,
	uint32_t n, double *weights, struct fault *fault)
{
	bool named[LIMIT_DATASETS] = {0};
	char field[sizeof(fault->field)];

	for (uint32_t d = 0; d < c->datasets; d++)
		weights[d] = 0;
	for (uint32_t i = 0; i < n; i++) {
		int d = find(c, names[i], fault);

		if (d < 0)
			return false;
		if (named[d]) {
			snprintf(field, sizeof(field), "dataset %s", c->dataset[d].name);
			return fault_set(
				fault, FAULT_ARGUMENT, field, "is named twice; give it one weight");
		}
		named[d] = true;
		weights[d] = given[i];
	}
	return true;
}

int64_t tokend_cursor_mix(const struct tokend_edit *e, uint64_t at, const char *const *names,
	const double *weights, uint32_t n)
{
	double all[LIMIT_DATASETS];
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	if (at == TOKEND_SOON)
		at = cursor_mix_at(&c);

	bool edited =
		weights_of(&c, names, weights, n, all, &fault) && cursor_mix(&c, at, all, &fault);

	return finish(e, &c, edited, &fault);
}

int64_t tokend_cursor_add(
	const struct tokend_edit *e, const void *from, size_t from_bytes, const char *name)
{
	struct fault fault;
	struct cursor_source source;
	struct cursor c, other;
	int d;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	if (!cursor_decode(&other, from, from_bytes, &fault)) {
		cursor_free(&c);
		return error_line(&fault, e->why, e->why_bytes);
	}
	bool edited = cursor_belongs(&c, &other, &fault) && (d = find(&other, name, &fault)) >= 0;

	if (edited) {
		cursor_source(&other, (uint32_t)d, &source);
		edited = cursor_add(&c, &source, &fault);
	}
	cursor_free(&other);
	return finish(e, &c, edited, &fault);
}

int64_t tokend_cursor_remove(const struct tokend_edit *e, const char *name, uint64_t at)
{
	struct fault fault;
	struct cursor c;
	int d;

	if (!cursor_decode(&c, e->cursor, e->cursor_bytes, &fault))
		return error_line(&fault, e->why, e->why_bytes);
	if (at == TOKEND_SOON)
		at = cursor_mix_at(&c);

	bool edited =
		(d = find(&c, name, &fault)) >= 0 && cursor_remove(&c, (uint32_t)d, at, &fault);

	return finish(e, &c, edited, &fault);
}

int tokend_cursor_position(
	const void *cursor, size_t cursor_bytes, uint64_t *position, char *why, size_t why_bytes)
{
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, cursor, cursor_bytes, &fault))
		return error_line(&fault, why, why_bytes);
	*position = c.next;
	cursor_free(&c);
	return 0;
}

int64_t tokend_cursor_show(const void *cursor, size_t cursor_bytes, char *json, size_t capacity,
	char *why, size_t why_bytes)
{
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, cursor, cursor_bytes, &fault))
		return error_line(&fault, why, why_bytes);
	size_t n = cursor_json(&c, json, capacity);

	cursor_free(&c);
	if (n == 0) {
		fault_set(&fault, FAULT_MEMORY, "capacity", "%zu bytes are too few for the text",
			capacity);
		return error_line(&fault, why, why_bytes);
	}
	return (int64_t)n;
}
