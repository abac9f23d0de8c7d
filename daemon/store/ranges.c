#include "daemon/store/stores.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static bool equal(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

uint64_t range_hash(const struct object *object)
{
	XXH64_hash_t hash = XXH64(object->key, strlen(object->key), (uintptr_t)object->bucket);

	return object->etag ? XXH64(object->etag, strlen(object->etag), hash) : hash;
}

static struct part **chain(struct stores *stores, uint64_t hash, uint64_t at)
{
	return &stores->index[((hash ^ (at * UINT64_C(0x9e3779b97f4a7c15))) >> 20) % INDEX_CHAINS];
}

struct part *range_find(
	struct stores *stores, const struct object *object, uint64_t hash, uint64_t at, size_t n)
{
	struct part *part = *chain(stores, hash, at);

	for (; part; part = part->next) {
		const struct range *range = part->range;

		if (part->hash == hash && part->at == at && part->n == n &&
			range->bucket == object->bucket && range->size == object->size &&
			equal(range->key, object->key) && equal(range->etag, object->etag))
			return part;
	}
	return NULL;
}

static char *append(char **end, const char *text)
{
	char *at = *end;

	if (!text)
		return NULL;
	*end = stpcpy(at, text) + 1;
	return at;
}

struct range *range_new(const struct object *object, const char *query, unsigned parts)
{
	size_t texts =
		strlen(object->key) + (object->etag ? strlen(object->etag) : 0) + strlen(query) + 3;
	struct range *range = calloc(1, sizeof(*range) + parts * sizeof(range->part[0]) + texts);

	if (!range)
		return NULL;
	char *end = (char *)&range->part[parts];

	range->bucket = (struct store_bucket *)object->bucket; /* owned by the stores */
	range->key = append(&end, object->key);
	range->etag = append(&end, object->etag);
	range->query = append(&end, query);
	range->size = object->size;
	range->state = RANGE_RESTS;
	range->since_ms = stores_now_ms();
	TAILQ_INIT(&range->wants);
	return range;
}

void range_add_part(
	struct stores *stores, struct range *range, uint64_t hash, uint64_t at, size_t n)
{
	struct part **to = chain(stores, hash, at), *part = &range->part[range->parts++];

	*part = (struct part){.hash = hash, .at = at, .n = n, .range = range, .next = *to};
	*to = part;
}

static void leave_index(struct range *range)
{
	struct stores *stores = range->bucket->stores;

	for (unsigned i = 0; i < range->parts; i++) {
		struct part **at = chain(stores, range->part[i].hash, range->part[i].at);

		while (*at != &range->part[i])
			at = &(*at)->next;
		*at = range->part[i].next;
	}
	range->parts = 0;
}

void range_join(struct range *range, struct want *want)
{
	want->range = range;
	want->offset = want->at - range->at;
	want->state = WANT_JOINED;
	TAILQ_INSERT_TAIL(&range->wants, want, link);
}

void range_wait(struct range *range, struct session *session, bool first)
{
	struct line *line = range->line ? range->line : session_line(session, range->bucket);

	assert(line); /* made before the range */
	range->line = line;
	range->state = RANGE_WAITS;
	if (TAILQ_EMPTY(&line->ranges))
		TAILQ_INSERT_TAIL(&range->bucket->turns, line, turn);
	if (first)
		TAILQ_INSERT_HEAD(&line->ranges, range, link);
	else
		TAILQ_INSERT_TAIL(&line->ranges, range, link);
}

/* ---- memory ---- */

static size_t cost(const struct range *range)
{
	return range->n + sizeof(*range);
}

char *range_take_body(struct range *range)
{
	char *body = range->body;

	if (body)
		range->bucket->body_bytes -= cost(range);
	range->body = NULL;
	return body;
}

void range_free_body(struct range *range)
{
	if (!range->body)
		return;
	assert(range->bucket->body_bytes >= cost(range));
	free(range_take_body(range));
}

static void range_free(struct range *range)
{
	assert(range->references == 0 && TAILQ_EMPTY(&range->wants));
	leave_index(range);
	range_free_body(range);
	free(range->fault);
	free(range);
}

/* Drops kept bodies, least recently used first, until @bytes more fit. */
static bool make_room(struct store_bucket *bucket, size_t bytes)
{
	const struct stores *stores = bucket->stores;
	uint64_t most = stores->options.memory_bytes / stores->bucket_count;
	struct range *range = TAILQ_FIRST(&bucket->kept), *next;

	for (; range && bucket->body_bytes + bytes > most; range = next) {
		next = TAILQ_NEXT(range, link);
		if (range->references > 0)
			continue;
		TAILQ_REMOVE(&bucket->kept, range, link);
		range_free(range);
	}
	return bucket->body_bytes + bytes <= most;
}

bool range_reserve(struct range *range)
{
	struct store_bucket *bucket = range->bucket;

	assert(!range->body);
	/* A range that is larger than the memory is fetched alone. */
	if (!make_room(bucket, cost(range)) && bucket->status.in_flight > 0)
		return false;
	range->body = malloc(range->n > 0 ? range->n : 1);
	if (!range->body)
		return false;
	bucket->body_bytes += cost(range);
	return true;
}

/* ---- ends ---- */

void range_end(struct range *range)
{
	leave_index(range);
	range->state = RANGE_ENDED;
	if (range->references == 0)
		range_free(range);
}

void range_unref(struct range *range)
{
	assert(range->references > 0);
	range->references--;
	if (range->references > 0)
		return;
	if (range->state == RANGE_KEPT && range->piece) {
		TAILQ_REMOVE(&range->bucket->kept, range, link);
		range->state = RANGE_ENDED;
	}
	if (range->state == RANGE_ENDED)
		range_free(range);
}

void range_abandon(struct range *range)
{
	struct line *line = range->line;

	assert(TAILQ_EMPTY(&range->wants));
	if (range->state == RANGE_WAITS) {
		TAILQ_REMOVE(&line->ranges, range, link);
		if (TAILQ_EMPTY(&line->ranges))
			TAILQ_REMOVE(&range->bucket->turns, line, turn);
	} else if (range->state == RANGE_RESTS) {
		TAILQ_REMOVE(&range->bucket->stores->resting, range, link);
	} else { /* in flight */
		return;
	}
	range_end(range);
}

void range_keep(struct range *range)
{
	assert(TAILQ_EMPTY(&range->wants));
	if (range->parts == 0 || (range->piece && range->references == 0)) {
		range_end(range);
		return;
	}
	range->state = RANGE_KEPT;
	TAILQ_INSERT_TAIL(&range->bucket->kept, range, link);
}

void ranges_drop(struct store_bucket *bucket)
{
	struct range *range;

	while ((range = TAILQ_FIRST(&bucket->kept))) {
		assert(range->references == 0);
		TAILQ_REMOVE(&bucket->kept, range, link);
		range_free(range);
	}
}
