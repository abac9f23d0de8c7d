/*
 * Edits of cursors: of values, which need no session, and of a session's own, which is then
 * attached at the edited one and can be reverted.
 */
#include "client/lib/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)TOKEND_EDIT_SEEK == (int)CURSOR_SEEK &&
		       (int)TOKEND_EDIT_REMOVE == (int)CURSOR_REMOVE && TOKEND_SOON == CURSOR_SOON,
	"passed on without conversion");

/* ---- values ---- */

static int64_t encode(const struct tokend_edit *e, const struct cursor *cursor, struct fault *fault)
{
	void *bytes = malloc(LIMIT_CURSOR_BYTES);
	size_t n = bytes ? cursor_encode(cursor, bytes, LIMIT_CURSOR_BYTES) : 0;
	bool fits = n > 0 && n <= e->capacity;

	if (fits) /* e->to may be the cursor that was read */
		memcpy(e->to, bytes, n);
	else if (n > 0)
		fault_set(fault, FAULT_MEMORY, "capacity",
			"%zu bytes are too few for the cursor of %zu", e->capacity, n);
	else
		fault_memory(fault);
	free(bytes);
	return fits ? (int64_t)n : -1;
}

int64_t tokend_cursor_edit(const struct tokend_edit *e)
{
	struct cursor c, from = {0};
	struct cursor_edit edit = {.kind = (enum cursor_edit_kind)e->kind,
		.number = e->number,
		.names = e->names,
		.name = e->name,
		.weight = e->weight,
		.stream = e->from ? &from : NULL};
	struct fault fault;
	uint64_t acts_from;
	int64_t n = -1;

	if (e->kind < TOKEND_EDIT_SEEK || e->kind > TOKEND_EDIT_REMOVE ||
		(e->kind == TOKEND_EDIT_ADD && !e->from) ||
		(e->kind == TOKEND_EDIT_REMOVE && e->names != 1)) {
		fault_set(&fault, FAULT_ARGUMENT, "edit", "of kind %d is not complete", e->kind);
		return error_line(&fault, e->why, e->why_bytes);
	}
	if (cursor_decode(&c, e->cursor, e->cursor_bytes, &fault) &&
		(!e->from || cursor_decode(&from, e->from, e->from_bytes, &fault)) &&
		cursor_apply(&c, &edit, &acts_from, &fault))
		n = encode(e, &c, &fault);
	cursor_free(&c);
	cursor_free(&from);
	return n < 0 ? error_line(&fault, e->why, e->why_bytes) : n;
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

/* ---- a session's own ---- */

/* If a mix names a dataset that the cursor lacks, sets @begin to the stream's cursor, which may
 * have it. */
static int learn_datasets(struct tokend *t, struct cursor_edit *edit, struct cursor *begin)
{
	struct fault fault;

	if (!cursor_missing(&t->origin, edit))
		return 0;

	int64_t n = tokend_stream(t, t->saved, LIMIT_CURSOR_BYTES);

	if (n < 0)
		return (int)n;
	edit->stream = begin;
	return cursor_decode(begin, t->saved, (size_t)n, &fault) ? 0 : handle_fault(t, &fault);
}

/* The session is attached at @edited, which becomes its origin. */
static void adopt(struct tokend *t, struct cursor *edited)
{
	uint64_t oldest = t->origin.segment[0]->start, first = edited->segment[0]->start,
		 to = edited->next;
	bool skipped = to != t->taken, all = handle_position(t) == t->taken;

	if (skipped && !all)
		t->skip[t->skips++] = (struct skip){t->taken, to};
	t->taken = to;
	/* A trainer that never committed requests no earlier position again. */
	if ((skipped && all) || first > t->committed)
		t->committed = to;
	edited->next = t->committed;
	position_set_origin(t, edited);
	if (skipped)
		recording_skipped(t);
	if (first > oldest) {
		char line[160];

		snprintf(line, sizeof(line),
			"the cursor has no room for mixes before position %" PRIu64
			" any more; to look further back, keep a checkpoint from before now",
			first);
		handle_tell(t, line);
	}
}

int edit_session(struct tokend *t, struct cursor_edit *edit, uint64_t *acts_from)
{
	const struct cursor here = position_cursor(t, t->taken);
	struct cursor begin = {0}, edited;
	struct fault fault;

	if (!position_make_room(t) || !cursor_copy(&edited, &here))
		return handle_memory(t);

	int r = edit->kind == CURSOR_MIX ? learn_datasets(t, edit, &begin) : 0;

	if (r == 0 && !cursor_apply(&edited, edit, acts_from, &fault))
		r = handle_fault(t, &fault);
	if (r == 0 && t->committing && edited.segment[0]->start > t->committed)
		r = handle_fail(t, TOKEND_EARGUMENT, "mix",
			"more mixes began since the committed position %" PRIu64
			" than a cursor holds; commit first",
			t->committed);
	if (r == 0)
		r = seek_edited(t, &edited);
	cursor_free(&begin);
	if (r == 0)
		adopt(t, &edited);
	else
		cursor_free(&edited);
	return r;
}

int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t *acts_from)
{
	struct cursor_edit edit = {.kind = CURSOR_MIX,
		.number = CURSOR_SOON,
		.names = n,
		.name = names,
		.weight = weights};
	uint64_t at;
	int r = handle_usable(t);

	if (r < 0)
		return r;
	r = undo_prepare(t);
	if (r == 0)
		r = edit_session(t, &edit, &at);
	if (r < 0)
		undo_forget(t);
	else if (acts_from)
		*acts_from = at;
	return r;
}

/* ---- reverting ---- */

static struct mapping **find_kept(struct tokend *t)
{
	struct mapping **at = &t->mapping;

	while (*at && *at != t->undo.mapping)
		at = &(*at)->older;
	return at;
}

void undo_forget(struct tokend *t)
{
	struct undo *k = &t->undo;
	struct mapping **at = k->mapping ? find_kept(t) : NULL, *m = at ? *at : NULL;

	cursor_free(&k->origin);
	if (m) {
		m->undoable = false;
		if (m != t->mapping && mapping_idle(m)) {
			*at = m->older;
			mapping_close(m, true);
		}
		link_close(k->fd);
	}
	*k = (struct undo){.fd = -1};
}

int undo_prepare(struct tokend *t)
{
	undo_forget(t);
	if (!cursor_copy(&t->undo.origin, &t->origin))
		return handle_memory(t);
	t->undo.taken = t->taken;
	t->undo.committed = t->committed;
	t->undo.number = t->number;
	t->undo.batches = t->batches;
	return 0;
}

void undo_keep_mapping(struct tokend *t)
{
	struct undo *k = &t->undo;

	if (k->origin.datasets == 0)
		return;
	t->mapping->undoable = true;
	k->mapping = t->mapping;
	k->fd = t->fd;
	k->saving = t->saving;
	t->fd = -1;
}

/* Makes the kept ring the current one again. */
static int readopt(struct tokend *t, const struct undo *k)
{
	struct mapping **at = find_kept(t), *m = *at;

	if (!m || m == t->mapping)
		return handle_broken(t, "the ring of the reverted edit is a former one");
	*at = m->older;
	m->undoable = false;
	attach_adopt(t, m, k->fd);
	t->saving = k->saving;
	/* Releases in the meantime were not reported to the daemon. */
	ring_release(&m->ring, m->queue.released);
	if (t->fd >= 0)
		link_wake(t->fd);
	return 0;
}

int tokend_undo(struct tokend *t)
{
	const struct undo k = t->undo;
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (!k.mapping)
		return 0;
	r = readopt(t, &k);
	if (r < 0)
		return r;
	t->undo = (struct undo){.fd = -1};
	search_end(&t->search);
	t->failed = 0;
	while (t->skips > 0 && t->skip[t->skips - 1].from >= k.taken)
		t->skips--;
	t->taken = k.taken;
	t->committed = k.committed;
	t->number = k.number;
	t->batches = k.batches;
	position_set_origin(t, &k.origin);
	recording_moved(t);
	r = position_check(t);
	return r < 0 ? r : 1;
}
