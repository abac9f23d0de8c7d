/* Wants that arrive join a range that has their bytes, or make new ranges with their neighbours. */
#include "daemon/store/coalesce.h"
#include "daemon/store/stores.h"

#include <string.h>

enum { BATCH = 256 }; /* wants that are compared with each other */

static bool same_object(const struct range *range, const struct object *object)
{
	const char *a = range->etag, *b = object->etag;

	return range->bucket == object->bucket && range->size == object->size &&
	       strcmp(range->key, object->key) == 0 && (a == b || (a && b && strcmp(a, b) == 0));
}

/* A range that is there, or on its way. */
static bool join(struct stores *stores, struct want *want, uint64_t hash, bool *news)
{
	struct part *part = range_find(stores, &want->object, hash, want->at, want->n);

	if (!part)
		return false;
	struct range *range = part->range;

	TAILQ_REMOVE(&stores->arrived, want, link);
	range_join(range, want);
	if (range->state == RANGE_KEPT) {
		TAILQ_REMOVE(&range->bucket->kept, range, link); /* used most recently */
		TAILQ_INSERT_TAIL(&range->bucket->kept, range, link);
		*news |= want_end(stores, want, NULL);
	}
	return true;
}

/* One range for @n spans of a group. NULL: out of memory, or not one object. */
static struct range *merge(struct stores *stores, const struct span *spans, unsigned n)
{
	const struct want *first = spans[0].want;
	struct range *range = NULL;
	uint64_t to = 0;

	if (session_line(first->session, (struct store_bucket *)first->object.bucket))
		range = range_new(&first->object, "", n);
	if (!range)
		return NULL;
	range->at = spans[0].at;
	for (unsigned i = 0; i < n; i++) {
		struct want *want = spans[i].want;

		if (spans[i].at + spans[i].n > to)
			to = spans[i].at + spans[i].n;
		TAILQ_REMOVE(&stores->arrived, want, link);
		if (i == 0 || spans[i].at != spans[i - 1].at || spans[i].n != spans[i - 1].n)
			range_add_part(stores, range, spans[i].object, spans[i].at, spans[i].n);
		range_join(range, want);
	}
	range->n = to - range->at;
	return range;
}

static bool make_range(struct stores *stores, const struct span *spans, unsigned n)
{
	struct range *range = merge(stores, spans, n);
	bool news = false;

	if (range) {
		range->piece = ((struct want *)spans[0].want)->piece;
		range_wait(range, ((struct want *)spans[0].want)->session, false);
	}
	for (unsigned i = 0; !range && i < n; i++)
		news |= want_end(stores, spans[i].want, &want_no_memory);
	return news;
}

/* The first want of each group, in the order of arrival, decides when the group's GET begins. */
static bool make_ranges(struct stores *stores, struct span *spans, unsigned n)
{
	unsigned from[BATCH], earliest[BATCH], groups = 0;
	bool news = false;

	coalesce(spans, n);
	for (unsigned i = 0; i < n; i++) {
		const struct want *a = spans[i].want, *b = i > 0 ? spans[i - 1].want : a;
		struct range probe = {.bucket = (struct store_bucket *)b->object.bucket,
			.key = (char *)b->object.key,
			.etag = (char *)b->object.etag,
			.size = b->object.size};

		if (i == 0 || spans[i].group != spans[i - 1].group ||
			!same_object(&probe, &a->object)) {
			from[groups] = i;
			earliest[groups++] = spans[i].order;
		} else if (spans[i].order < earliest[groups - 1]) {
			earliest[groups - 1] = spans[i].order;
		}
	}
	for (unsigned done = 0; done < groups; done++) {
		unsigned next = 0;

		for (unsigned g = 1; g < groups; g++)
			if (earliest[g] < earliest[next])
				next = g;
		earliest[next] = UINT32_MAX;
		news |= make_range(stores, &spans[from[next]],
			(next + 1 < groups ? from[next + 1] : n) - from[next]);
	}
	return news;
}

bool stores_arrive(struct stores *stores)
{
	struct span spans[BATCH];
	bool news = false;

	while (!TAILQ_EMPTY(&stores->arrived)) {
		struct want *want, *next;
		unsigned n = 0;

		for (want = TAILQ_FIRST(&stores->arrived); want && n < BATCH; want = next) {
			uint64_t hash = range_hash(&want->object);

			next = TAILQ_NEXT(want, link);
			if (join(stores, want, hash, &news))
				continue;
			spans[n] = (struct span){hash, want->at, want->n, want, n, 0};
			if (want->piece) {
				news |= make_range(stores, &spans[n], 1);
				continue;
			}
			n++;
		}
		if (n > 0)
			news |= make_ranges(stores, spans, n);
	}
	return news;
}
