#include "proto/cursor.h"

#include "proto/cursor_private.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MOST (UINT32_C(1) << 31) /* windows of a block, blocks of a group */

bool cursor_refuse_dataset(
	struct fault *fault, const char *name, const char *what, const char *text, ...)
{
	va_list args;
	char said[sizeof(fault->text)], field[sizeof(fault->field)];

	snprintf(field, sizeof(field), "dataset %.48s: %s", name, what);
	va_start(args, text);
	vsnprintf(said, sizeof(said), text, args);
	va_end(args);
	return fault_set(fault, FAULT_CURSOR, field, "%s", said);
}

void cursor_check(const struct cursor *c)
{
	assert(c->datasets > 0 && c->datasets <= LIMIT_DATASETS);
	assert(c->dataset && c->order);
	assert(c->stream[0]);
	assert(c->seq_len > 0 && c->seq_len <= LIMIT_CHUNK_BYTES);
	assert(c->extra <= LIMIT_CHUNK_BYTES - c->seq_len);
	assert(c->stride > 0);
	assert(c->epochs == 0 || c->samples == 0);
	assert(c->segments > 0 && c->segment);
	assert(c->segments == 1 || c->epochs == 0);
	assert(c->segment[0]->start <= c->next);
	assert(c->next <= cursor_end(c));
	for (uint32_t d = 0; d < c->datasets; d++) {
		assert(c->dataset[d].name[0]);
		assert(c->epochs == 0 || c->dataset[d].max_epochs == 0);
		assert(c->order[d].block > 0 && c->order[d].group > 0);
		assert(c->dataset[d].lo < c->dataset[d].hi && c->dataset[d].hi <= ORDER_UNITS);
	}

	struct order order = cursor_history(c);

	order_check(&order);
}

/* ---- building ---- */

static bool check_source(const struct cursor_source *s, struct fault *fault)
{
	assert(s->name);
	if (!wire_label_ok(s->name))
		return cursor_refuse_dataset(fault, s->name, "name", "must be " PHRASE_LABEL);
	if (s->shuffle != ORDER_NONE && s->shuffle != ORDER_GLOBAL && s->shuffle != ORDER_BLOCK)
		return cursor_refuse_dataset(
			fault, s->name, "shuffle", "%u is not a kind of shuffle", s->shuffle);
	if (s->block < 1 || s->block > BLOCK_MOST)
		return cursor_refuse_dataset(fault, s->name, "block", PHRASE_RANGE,
			(uint64_t)s->block, (uint64_t)BLOCK_MOST);
	if (s->group < 1 || s->group > BLOCK_MOST)
		return cursor_refuse_dataset(fault, s->name, "group", PHRASE_RANGE,
			(uint64_t)s->group, (uint64_t)BLOCK_MOST);

	struct order_dataset part;

	if (s->hi > 0 && (s->lo >= s->hi || s->hi > ORDER_UNITS ||
				 !order_part(&part, s->windows, s->lo, s->hi)))
		return cursor_refuse_dataset(
			fault, s->name, "part", "none of its windows is in this part");
	return true;
}

/* check_source() accepted it. */
static void place_source(struct cursor *c, uint32_t d, const struct cursor_source *s)
{
	struct cursor_dataset *dataset = &c->dataset[d];

	assert(wire_label_ok(s->name));
	memset(dataset, 0, sizeof(*dataset));
	memcpy(dataset->name, s->name, strlen(s->name));
	dataset->digest = s->digest;
	dataset->max_epochs = s->max_epochs;
	dataset->lo = s->lo;
	dataset->hi = s->hi > 0 ? s->hi : ORDER_UNITS;
	c->order[d] = (struct order_dataset){
		.name_hash = order_name_hash(s->name, strlen(s->name)),
		.block = s->block,
		.group = s->group,
		.shuffle = s->shuffle,
		.slide = s->slide,
	};
	bool any = order_part(&c->order[d], s->windows, dataset->lo, dataset->hi);

	assert(any);
	(void)any;
}

/* Makes room for @n datasets and keeps the present ones. */
static bool grow(struct cursor *c, uint32_t n)
{
	assert(n > 0 && n <= LIMIT_DATASETS + 1 && n >= c->datasets);
	struct cursor_dataset *dataset = realloc(c->dataset, n * sizeof(*dataset));

	if (!dataset)
		return false;
	c->dataset = dataset;

	struct order_dataset *order = realloc(c->order, n * sizeof(*order));

	if (!order)
		return false;
	c->order = order;
	return true;
}

static bool check_windows(const struct cursor *c, struct fault *fault)
{
	if (c->seq_len < 1 || c->seq_len > LIMIT_CHUNK_BYTES)
		return fault_set(fault, FAULT_CURSOR, "seq_len", PHRASE_RANGE, c->seq_len,
			(uint64_t)LIMIT_CHUNK_BYTES);
	if (c->extra > LIMIT_CHUNK_BYTES - c->seq_len)
		return fault_set(fault, FAULT_CURSOR, "extra",
			"%" PRIu64 "; seq_len + extra must be at most %" PRIu64, c->extra,
			(uint64_t)LIMIT_CHUNK_BYTES);
	if (c->stride < 1)
		return fault_set(fault, FAULT_CURSOR, "stride", "0; must be 1 or more");
	if (c->epochs && c->samples)
		return fault_set(
			fault, FAULT_CURSOR, "samples", "a stream has epochs or samples, not both");
	return true;
}

static size_t number_bytes(uint64_t value)
{
	return value < 128	     ? 1
	       : value < 256	     ? 2
	       : value <= UINT16_MAX ? 3
	       : value <= UINT32_MAX ? 5
				     : 9;
}

size_t cursor_bytes_one(const struct cursor *c)
{
	size_t number = c->epochs ? 9 : 5; /* units and phases: 33 bits where they sum to 2^32 */
	size_t bytes = 512 + order_padded(c->datasets);

	for (uint32_t d = 0; d < c->datasets; d++)
		bytes += strlen(c->dataset[d].name) + 2 +
			 31 /* windows, digest, shuffle, block, group, slide */
			 + number_bytes(c->dataset[d].max_epochs) +
			 (c->order[d].part.of ? 2 * 9 : 2) /* its part */
			 + 9 /* base */ + 2 * number;
	return bytes;
}

size_t cursor_bytes_more(const struct order_segment *s)
{
	size_t bytes = number_bytes(s->start) + (s->datasets < 16 ? 1 : 3);

	for (uint32_t d = 0; d < s->datasets; d++)
		bytes += number_bytes(s->units[d]);
	return bytes;
}

static bool check_size(const struct cursor *c, struct fault *fault)
{
	if (c->datasets > LIMIT_DATASETS)
		return fault_set(fault, FAULT_CURSOR, "datasets", "%u; must be at most %d",
			c->datasets, LIMIT_DATASETS);

	size_t bytes = cursor_bytes_one(c), pending = 0;
	/* Room for a mix that an operator may request later. */
	size_t reserve = c->epochs ? 0 : 5 * (size_t)c->datasets;
	uint32_t past = c->segments ? cursor_past(c) : 0;

	for (uint32_t i = past + 1; i < c->segments; i++)
		pending += cursor_bytes_more(c->segment[i]);
	bytes += pending > reserve ? pending : reserve;
	if (bytes > LIMIT_CURSOR_BYTES)
		return fault_set(fault, FAULT_CURSOR, "datasets",
			"with %u pending mixes the cursor could grow to %zu bytes; must be at most "
			"%d: use shorter names for the datasets%s",
			c->segments > 1 ? c->segments - past - 1 : 0, bytes, LIMIT_CURSOR_BYTES,
			c->segments > past + 2 ? ", or fewer steps" : "");
	return true;
}

bool cursor_epoch_units(const struct cursor *c, uint64_t *units, struct fault *fault)
{
	u128 total = 0;

	assert(c->epochs > 0);
	for (uint32_t d = 0; d < c->datasets; d++) {
		u128 product = (u128)c->order[d].windows * c->epochs;

		total += product;
		if (total > UINT64_MAX)
			return fault_set(fault, FAULT_CURSOR, "epochs",
				"%" PRIu64 " epochs have 2^64 samples or more; use fewer",
				c->epochs);
		units[d] = (uint64_t)product;
	}
	if (total == 0)
		return fault_set(fault, FAULT_CURSOR, "epochs",
			"no dataset has a window, so the stream is empty; use longer shards or a "
			"smaller seq_len");
	return true;
}

/* Compares names, not hashes: two names with one hash can be computed in seconds. */
int cursor_find(const struct cursor *c, const char *name)
{
	for (uint32_t d = 0; d < c->datasets; d++)
		if (strcmp(c->dataset[d].name, name) == 0)
			return (int)d;
	return -1;
}

char *cursor_list_datasets(
	const struct cursor *cursor, const char *name, char list[NEAREST_LIST_BYTES])
{
	const char *known[LIMIT_DATASETS];

	for (uint32_t d = 0; d < cursor->datasets; d++)
		known[d] = cursor->dataset[d].name;
	return nearest_list(list, name, known, cursor->datasets);
}

bool cursor_identity(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, struct fault *fault)
{
	*out = (struct cursor){
		.seed = identity->seed,
		.seq_len = identity->seq_len,
		.extra = identity->extra,
		.stride = identity->stride,
		.epochs = identity->epochs,
		.samples = identity->samples,
	};
	memcpy(out->stream, identity->stream, sizeof(out->stream));
	if (!wire_name_ok(out->stream))
		return fault_set(fault, FAULT_CURSOR, "stream", "must be " PHRASE_NAME);
	if (!check_windows(out, fault))
		return false;
	if (n == 0 || n > LIMIT_DATASETS)
		return fault_set(
			fault, FAULT_CURSOR, "datasets", "%u; must be 1 to %d", n, LIMIT_DATASETS);
	if (!grow(out, n))
		return fault_memory(fault);
	for (uint32_t d = 0; d < n; d++) {
		if (!check_source(&sources[d], fault))
			return false;
		if (out->epochs && sources[d].max_epochs)
			return cursor_refuse_dataset(fault, sources[d].name, "max_epochs",
				"stream %s has epochs, which hold for all its datasets; remove "
				"max_epochs",
				out->stream);
		if (cursor_find(out, sources[d].name) >= 0)
			return cursor_refuse_dataset(fault, sources[d].name, "name", PHRASE_TWICE);
		place_source(out, out->datasets++, &sources[d]);
	}
	return check_size(out, fault);
}

bool cursor_append(struct cursor *c, struct order_segment *segment)
{
	uint32_t n = c->segments;

	if (!segment)
		return false;
	assert(n == 0 || segment->start > c->segment[n - 1]->start);
	assert(n == 0 || segment->datasets >= c->segment[n - 1]->datasets);
	/* The list is full if n is a power of two: double it. */
	if ((n & (n - 1)) == 0) {
		struct order_segment **list = realloc(
			c->segment, (n ? 2 * (size_t)n : 1) * sizeof(struct order_segment *));

		if (!list) {
			order_segment_free(segment);
			return false;
		}
		c->segment = list;
	}
	c->segment[c->segments++] = segment;
	return true;
}

void cursor_drop(struct cursor *c, uint32_t n)
{
	assert(n <= c->segments);
	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		order_segment_free(c->segment[i]);
	c->segments -= n;
	memmove(c->segment, c->segment + n, c->segments * sizeof(struct order_segment *));
}

size_t cursor_bytes_most(const struct cursor *c)
{
	size_t bytes = cursor_bytes_one(c);

	for (uint32_t i = 1; i < c->segments; i++)
		bytes += cursor_bytes_more(c->segment[i]);
	return bytes;
}

void cursor_fit(struct cursor *c)
{
	size_t bytes = cursor_bytes_most(c);
	uint32_t past = cursor_past(c), drop = 0;

	while (drop < past && bytes > LIMIT_CURSOR_BYTES)
		bytes -= cursor_bytes_more(c->segment[++drop]);
	cursor_drop(c, drop);
}

bool cursor_copy(struct cursor *out, const struct cursor *cursor)
{
	*out = *cursor;
	out->dataset = NULL;
	out->order = NULL;
	out->segment = NULL;
	out->segments = 0;
	if (cursor->datasets == 0) /* it was freed */
		return true;
	if (!grow(out, cursor->datasets))
		goto fail;
	memcpy(out->dataset, cursor->dataset, cursor->datasets * sizeof(*out->dataset));
	memcpy(out->order, cursor->order, cursor->datasets * sizeof(*out->order));
	for (uint32_t i = 0; i < cursor->segments; i++)
		if (!cursor_append(out, order_segment_copy(cursor->segment[i])))
			goto fail;
	return true;
fail:
	cursor_free(out);
	return false;
}

void cursor_free(struct cursor *cursor)
{
	free(cursor->dataset);
	free(cursor->order);
	cursor_drop(cursor, cursor->segments);
	free(cursor->segment);
	memset(cursor, 0, sizeof(*cursor));
}

bool cursor_replace(struct cursor *c, struct cursor *edited, bool done)
{
	cursor_free(done ? c : edited);
	if (!done)
		return false;
	*c = *edited;
	cursor_check(c);
	return true;
}

uint64_t cursor_end(const struct cursor *cursor)
{
	if (cursor->samples)
		return cursor->samples;
	assert(!cursor->epochs || cursor->segments == 1);
	return cursor->epochs ? cursor->segment[0]->prefix[cursor->segment[0]->padded] : UINT64_MAX;
}

uint32_t cursor_past(const struct cursor *cursor)
{
	uint32_t lo = 0, hi = cursor->segments;

	assert(cursor->segments > 0 && cursor->segment[0]->start <= cursor->next);
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (cursor->segment[mid]->start <= cursor->next)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

const struct order_segment *cursor_now(const struct cursor *cursor)
{
	return cursor->segment[cursor_past(cursor)];
}

struct order cursor_history(const struct cursor *cursor)
{
	return (struct order){
		.seed = cursor->seed,
		.end = cursor->epochs || cursor->samples ? cursor_end(cursor) : 0,
		.exact_end = cursor->epochs > 0,
		.datasets = cursor->datasets,
		.segments = cursor->segments,
		.dataset = cursor->order,
		.segment = (const struct order_segment *const *)cursor->segment,
	};
}

struct order cursor_order(const struct cursor *cursor)
{
	struct order order = cursor_history(cursor);
	uint32_t past = cursor_past(cursor);

	order.segment += past;
	order.segments -= past;
	return order;
}

/* ---- edits ---- */

bool cursor_seek(struct cursor *c, uint64_t position, struct fault *fault)
{
	if (position < c->segment[0]->start)
		return fault_set(fault, FAULT_CURSOR, "position",
			"%" PRIu64 " is before %" PRIu64
			", where the oldest mix that this cursor knows begins; use a cursor saved "
			"earlier",
			position, c->segment[0]->start);
	if (position > cursor_end(c))
		return fault_set(fault, FAULT_CURSOR, "position",
			"%" PRIu64 " is past the end of the stream, %" PRIu64, position,
			cursor_end(c));
	c->next = position;
	cursor_check(c);
	return true;
}

bool cursor_skip(struct cursor *c, uint64_t samples, struct fault *fault)
{
	uint64_t end = cursor_end(c);

	assert(c->next <= end);
	if (samples > end - c->next)
		return fault_set(fault, FAULT_CURSOR, "samples",
			"%" PRIu64 " from position %" PRIu64
			" on go past the end of the stream, %" PRIu64 "; must be at most %" PRIu64,
			samples, c->next, end, end - c->next);
	return cursor_seek(c, c->next + samples, fault);
}

bool cursor_rewind(struct cursor *c, uint64_t position, struct fault *fault)
{
	if (position > c->next)
		return fault_set(fault, FAULT_CURSOR, "position",
			"%" PRIu64 " is ahead of the cursor, which is at %" PRIu64
			"; use skip or seek",
			position, c->next);
	return cursor_seek(c, position, fault);
}

bool cursor_add(struct cursor *c, const struct cursor_source *source, struct fault *fault)
{
	struct cursor copy;

	if (c->epochs)
		return fault_set(fault, FAULT_CURSOR, "add",
			"stream %s has epochs, so its datasets are fixed", c->stream);
	if (!check_source(source, fault))
		return false;
	if (cursor_find(c, source->name) >= 0)
		return cursor_refuse_dataset(
			fault, source->name, "name", "is in the cursor already");
	if (!cursor_copy(&copy, c))
		return fault_memory(fault);
	if (!grow(&copy, c->datasets + 1)) {
		fault_memory(fault);
		return cursor_replace(c, &copy, false);
	}
	place_source(&copy, copy.datasets++, source);
	if (!check_size(&copy, fault))
		return cursor_replace(c, &copy, false);
	/* The segments keep their own lists, without the new dataset. */
	cursor_fit(&copy);
	return cursor_replace(c, &copy, true);
}

void cursor_source(const struct cursor *c, uint32_t d, struct cursor_source *source)
{
	const struct order_dataset *o = &c->order[d];

	assert(d < c->datasets);
	*source = (struct cursor_source){
		.name = c->dataset[d].name,
		.windows = order_path_windows(o),
		.digest = c->dataset[d].digest,
		.lo = c->dataset[d].lo,
		.hi = c->dataset[d].hi,
		.block = o->block,
		.group = o->group,
		.shuffle = o->shuffle,
		.slide = o->slide,
		.max_epochs = c->dataset[d].max_epochs,
	};
}
