#include "client/ctl/offline/history.h"

#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/run_cursor.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool ctl_same_segment(const struct order_segment *a, const struct order_segment *b)
{
	uint32_t n = a->datasets;

	return a->start == b->start && n == b->datasets &&
	       memcmp(a->units, b->units, n * sizeof(*a->units)) == 0 &&
	       memcmp(a->base, b->base, n * sizeof(*a->base)) == 0 &&
	       memcmp(a->phase, b->phase, a->padded * sizeof(*a->phase)) == 0;
}

/* Is the mix that is current in @early, one that @late has had? */
static bool is_past(const struct cursor *early, const struct cursor *late)
{
	const struct order_segment *now = cursor_now(early);

	for (uint32_t i = 0; i < late->segments; i++)
		if (ctl_same_segment(late->segment[i], now))
			return true;
	return now->start < late->segment[0]->start;
}

/* Reads the file @paths[i]; the one of the two that reaches further becomes *@furthest. */
static bool add(struct cursor *furthest, const char *const *paths, unsigned i, unsigned *at,
	const struct cursor *begin)
{
	struct cursor other;
	bool further, good;

	if (!ctl_cursor_read(&other, paths[i], begin))
		return false;
	further = i == 0 || other.next >= furthest->next;
	good = i == 0 || (further ? is_past(furthest, &other) : is_past(&other, furthest));
	if (!good)
		ctl_fail("%s is not on the past of %s; leave out cursors of another run, and "
			 "those from before a restart that gave it another mix",
			further ? paths[*at] : paths[i], further ? paths[i] : paths[*at]);
	if (further && good) {
		cursor_free(furthest);
		*furthest = other;
		*at = i;
	} else {
		cursor_free(&other);
	}
	return good;
}

bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run)
{
	const struct cursor *begin = &s->stream->begin;
	bool good = true;
	unsigned at = 0;

	*h = (struct ctl_history){0};
	if (run) {
		good = run_cursor_read(&h->cursor, s, run);
	} else if (n == 0) {
		good = cursor_copy(&h->cursor, begin);
		if (!good)
			ctl_fail(PHRASE_MEMORY);
	}
	for (unsigned i = 0; i < n && good; i++)
		good = add(&h->cursor, paths, i, &at, begin);
	if (good)
		h->order = cursor_history(&h->cursor);
	else
		ctl_history_close(h);
	return good;
}

void ctl_history_close(struct ctl_history *h)
{
	cursor_free(&h->cursor);
	*h = (struct ctl_history){0};
}
