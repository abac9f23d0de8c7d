#include "client/lib/undo.h"

#include "client/lib/position.h"
#include "client/lib/recording.h"

#include <unistd.h>

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
		if (k->fd >= 0)
			close(k->fd);
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
	while (t->grids > 1 && t->grid[t->grids - 1].start > k.taken)
		t->grids--;
	if (t->grid[0].start > k.taken)
		t->grid[0] = (struct grid){k.taken, t->step, k.taken};
	t->taken = k.taken;
	t->committed = k.committed;
	t->number = k.number;
	t->batches = k.batches;
	position_set_origin(t, &k.origin);
	recording_moved(t);
	r = position_check(t);
	return r < 0 ? r : 1;
}
