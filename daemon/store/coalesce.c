#include "daemon/store/coalesce.h"

#include <stdlib.h>

static int by_place(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	if (x->object != y->object)
		return x->object < y->object ? -1 : 1;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->n > y->n) - (x->n < y->n);
}

unsigned coalesce(struct span *spans, unsigned n)
{
	uint64_t from = 0, to = 0; /* of the group */
	unsigned groups = 0;

	if (n > 1)
		qsort(spans, n, sizeof(*spans), by_place);
	for (unsigned i = 0; i < n; i++) {
		struct span *s = &spans[i];
		uint64_t end = s->at + s->n > to || groups == 0 ? s->at + s->n : to;

		if (i > 0 && s->object == spans[i - 1].object &&
			(s->at <= to || s->at - to <= COALESCE_GAP_BYTES) &&
			end - from <= COALESCE_MOST_BYTES) {
			to = end;
		} else {
			from = s->at;
			to = s->at + s->n;
			groups++;
		}
		s->group = groups - 1;
	}
	return groups;
}
