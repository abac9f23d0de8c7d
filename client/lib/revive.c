#include "client/lib/revive.h"

#include "client/lib/message.h"
#include "client/lib/position.h"
#include "client/lib/search.h"
#include "client/lib/warn.h"

/* The new ring must continue exactly where the old one stopped. */
static int check_revived(struct tokend *t, const struct mapping *m, const struct cursor *cursor)
{
	const struct ring_geometry *old = &t->mapping->ring.geometry, *new = &m->ring.geometry;

	if (cursor->next != t->taken)
		return message_unknown(t, "a feed at another position than requested");
	/* token_bytes may differ: it is that of the widest dataset in the config. */
	if (new->window_tokens != old->window_tokens)
		return handle_fail(t, TOKEND_EREFUSED, "window",
			"the restarted daemon serves windows of %u tokens instead of %u; "
			"restore its config, or attach again",
			new->window_tokens, old->window_tokens);
	if (old->documents && !new->documents)
		return handle_fail(t, TOKEND_EREFUSED, "documents",
			"the restarted daemon's config no longer has them for stream %s; set "
			"documents: true there",
			t->stream);
	if (old->loss_mask && !new->loss_mask)
		return handle_fail(t, TOKEND_EREFUSED, "loss_mask",
			"the restarted daemon's config no longer has it for stream %s; set "
			"loss_mask: true there",
			t->stream);
	return 1;
}

int revive(struct tokend *t, bool wait)
{
	struct search *s = &t->search;
	struct mapping *m = NULL;
	struct cursor cursor = {0};

	if (t->failed)
		return handle_failed(t);

	const struct cursor *place = position_cursor(t, t->taken);

	if (!place)
		return handle_error(t);

	const struct target target = {
		.cursor = t->bytes,
		.cursor_bytes = cursor_encode(place, t->bytes, LIMIT_CURSOR_BYTES),
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch,
	};

	const struct patience patience = {
		.connect_ms = t->deadline_ms, .deadline_ms = t->deadline_ms};

	if (!s->active)
		search_begin(s, &patience);
	/* A query was interrupted while its attach was under way, and batches were taken since. */
	if (s->position != t->taken)
		search_again(s);
	s->position = t->taken;

	int r = attach_step(t, &target, s, wait);

	/* The next call tries again. */
	if (r == 0 || r == TOKEND_EAGAIN || r == TOKEND_ESTART)
		return r;
	if (r == 1)
		r = attach_feed(t, &target, &m, &cursor);
	if (r == 1) {
		r = check_revived(t, m, &cursor);
		cursor_free(&cursor);
		if (r == 1) {
			attach_adopt(t, m, s->fd);
			s->fd = -1;
			t->reattached++;
			if (warn_over(t, &s->warnings) < 0) {
				search_end(s);
				return TOKEND_EAGAIN;
			}
		} else {
			mapping_close(m, true);
		}
	}
	search_end(s);
	return r == 1 ? 1 : handle_latch(t, r);
}
