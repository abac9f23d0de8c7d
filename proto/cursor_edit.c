/* Edits as values: the one way into a cursor for programs, operators and files. */
#include "proto/cursor.h"

#include "proto/cursor_private.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Sets *@d to the index of dataset @name in @c, a cursor or the one of a stream's beginning. */
static bool find(const struct cursor *c, const char *what, const char *name, uint32_t *d,
	struct fault *fault)
{
	char field[FAULT_FIELD_BYTES], list[NEAREST_LIST_BYTES];
	int found = cursor_find(c, name);

	assert(c->datasets > 0);
	*d = (uint32_t)found;
	if (found >= 0)
		return true;
	snprintf(field, sizeof(field), "dataset %.*s", LIMIT_NAME_BYTES, name);
	return fault_set(fault, FAULT_ARGUMENT, field, "is not in the %s; must be one of: %s", what,
		cursor_list_datasets(c, name, list));
}

static bool add_named(
	struct cursor *c, const struct cursor *stream, const char *name, struct fault *fault)
{
	struct cursor_source source;
	uint32_t d;

	assert(stream != c);
	if (!find(stream, "config", name, &d, fault))
		return false;
	cursor_source(stream, d, &source);
	return cursor_add(c, &source, fault);
}

const char *cursor_missing(const struct cursor *c, const struct cursor_edit *e)
{
	const char *first = NULL;

	assert(e->kind == CURSOR_MIX);
	for (uint32_t i = 0; i < e->names; i++)
		if (cursor_find(c, e->name[i]) < 0 && (!first || strcmp(e->name[i], first) < 0))
			first = e->name[i];
	return first;
}

static bool add_missing(struct cursor *c, const struct cursor_edit *e, struct fault *fault)
{
	const char *name;

	assert(e->stream);
	while ((name = cursor_missing(c, e)))
		if (!add_named(c, e->stream, name, fault))
			return false;
	return true;
}

static bool apply_add(struct cursor *c, const struct cursor_edit *e, struct fault *fault)
{
	assert(e->stream);
	if (!cursor_belongs(c, e->stream, fault))
		return false;
	for (uint32_t i = 0; i < e->names; i++)
		if (!add_named(c, e->stream, e->name[i], fault))
			return false;
	for (uint32_t d = 0; e->names == 0 && d < e->stream->datasets; d++) {
		const char *name = e->stream->dataset[d].name;

		if (cursor_find(c, name) < 0 && !add_named(c, e->stream, name, fault))
			return false;
	}
	return true;
}

static bool apply_mix(
	struct cursor *c, const struct cursor_edit *e, uint64_t at, struct fault *fault)
{
	double weights[LIMIT_DATASETS] = {0};
	bool named[LIMIT_DATASETS] = {0};

	if (e->stream && !add_missing(c, e, fault))
		return false;
	assert(c->datasets <= LIMIT_DATASETS);
	for (uint32_t i = 0; i < e->names; i++) {
		uint32_t d;

		if (!find(c, "cursor", e->name[i], &d, fault))
			return false;
		if (named[d])
			return cursor_refuse_dataset(
				fault, e->name[i], "weight", "is named twice; give it one weight");
		named[d] = true;
		weights[d] = e->weight[i];
	}
	return cursor_mix(c, at, weights, fault);
}

static bool apply(
	struct cursor *c, const struct cursor_edit *e, uint64_t *acts_from, struct fault *fault)
{
	uint64_t at = e->number == CURSOR_SOON ? cursor_mix_at(c) : e->number;
	bool moves = e->kind <= CURSOR_REWIND, done = false;
	uint32_t d;

	assert(moves || e->kind <= CURSOR_REMOVE);
	if (e->kind == CURSOR_SEEK)
		done = cursor_seek(c, e->number, fault);
	else if (e->kind == CURSOR_SKIP)
		done = cursor_skip(c, e->number, fault);
	else if (e->kind == CURSOR_REWIND)
		done = cursor_rewind(c, e->number, fault);
	else if (e->kind == CURSOR_MIX)
		done = apply_mix(c, e, at, fault);
	else if (e->kind == CURSOR_ADD)
		done = apply_add(c, e, fault);
	else
		done = find(c, "cursor", e->name[0], &d, fault) && cursor_remove(c, d, at, fault);
	*acts_from = moves ? c->next : at;
	return done;
}

bool cursor_apply(
	struct cursor *c, const struct cursor_edit *e, uint64_t *acts_from, struct fault *fault)
{
	struct cursor edited;

	cursor_check(c);
	if (!cursor_copy(&edited, c))
		return fault_memory(fault);
	return cursor_replace(c, &edited, apply(&edited, e, acts_from, fault));
}
