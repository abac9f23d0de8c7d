/*
 * Cursors as bytes. Encoding is canonical: equal cursors give equal bytes. Decoding trusts nothing:
 * it accepts only cursors whose order can be evaluated, and otherwise reports the member that is
 * wrong.
 */
#include "proto/cursor.h"

#include "proto/cursor_private.h"
#include "proto/pack.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct header {
	char magic[4]; /* "tkdc" */
	uint32_t version;
	uint64_t checksum; /* of the rest */
};

enum { HEADER_BYTES = sizeof(struct header), DATASET_VALUES = 11 /* the array, and what it has */ };

static void pack_key(struct pack *p, const char *key)
{
	pack_text(p, key, strlen(key));
}

static void pack_pair(struct pack *p, const char *key, uint64_t value)
{
	pack_key(p, key);
	pack_uint(p, value);
}

static void pack_numbers(struct pack *p, const uint64_t *values, uint32_t n)
{
	pack_array(p, n);
	for (uint32_t i = 0; i < n; i++)
		pack_uint(p, values[i]);
}

static void pack_datasets(struct pack *p, const struct cursor *c)
{
	pack_key(p, "datasets");
	pack_array(p, c->datasets);
	for (uint32_t d = 0; d < c->datasets; d++) {
		const struct cursor_dataset *dataset = &c->dataset[d];
		const struct order_dataset *o = &c->order[d];

		pack_array(p, DATASET_VALUES - 1);
		pack_text(p, dataset->name, strlen(dataset->name));
		pack_uint(p, order_path_windows(o));
		pack_uint(p, dataset->digest);
		pack_uint(p, o->shuffle);
		pack_uint(p, o->block);
		pack_uint(p, o->group);
		pack_uint(p, o->slide);
		pack_uint(p, dataset->max_epochs);
		pack_uint(p, o->part.of ? dataset->lo : 0); /* its part; 0, 0: every window */
		pack_uint(p, o->part.of ? dataset->hi : 0);
	}
}

/* Base and phase of the first segment; those of the others are derived from it. */
static void pack_mixes(struct pack *p, const struct cursor *c)
{
	pack_key(p, "base");
	pack_numbers(p, c->segment[0]->base, c->segment[0]->datasets);
	pack_key(p, "phase");
	pack_numbers(p, c->segment[0]->phase, c->segment[0]->padded);
	pack_key(p, "mixes");
	pack_array(p, 2 * c->segments);
	for (uint32_t i = 0; i < c->segments; i++) {
		pack_uint(p, c->segment[i]->start);
		pack_numbers(p, c->segment[i]->units, c->segment[i]->datasets);
	}
}

size_t cursor_encode(const struct cursor *c, void *bytes, size_t capacity)
{
	struct header head = {.magic = "tkdc", .version = CURSOR_VERSION};

	cursor_check(c);
	if (capacity <= HEADER_BYTES)
		return 0;

	struct pack p = pack_into((char *)bytes + HEADER_BYTES, capacity - HEADER_BYTES);

	pack_map(&p, 13);
	pack_pair(&p, "order", ORDER_VERSION);
	pack_key(&p, "stream");
	pack_text(&p, c->stream, strlen(c->stream));
	pack_pair(&p, "seed", c->seed);
	pack_pair(&p, "seq_len", c->seq_len);
	pack_pair(&p, "extra", c->extra);
	pack_pair(&p, "stride", c->stride);
	pack_pair(&p, "epochs", c->epochs);
	pack_pair(&p, "samples", c->samples);
	pack_datasets(&p, c);
	pack_pair(&p, "next", c->next);
	pack_mixes(&p, c);
	if (p.full)
		return 0;
	assert(p.length <= capacity - HEADER_BYTES);
	head.checksum = order_checksum(p.bytes, p.length);
	memcpy(bytes, &head, HEADER_BYTES);
	return HEADER_BYTES + p.length;
}

size_t cursor_encode_mixes(const struct cursor *cursor, void *bytes, size_t capacity)
{
	struct cursor first = *cursor;

	assert(cursor->segments > 0);
	first.next = first.segment[0]->start;
	return cursor_encode(&first, bytes, capacity);
}

/* The members of the map, before they are checked. */
struct parts {
	uint64_t order, seed, seq_len, extra, stride, epochs, samples, next;
	const struct value *stream, *datasets, *base, *phase, *mixes;
};

static bool find_parts(
	struct parts *parts, const struct value *map, const struct value *end, struct fault *fault)
{
	const struct {
		const char *key;
		uint64_t *number;	    /* or */
		const struct value **value; /* a text or an array */
		enum value_type type;
	} keys[] = {
		{"order", &parts->order, NULL, VALUE_UINT},
		{"stream", NULL, &parts->stream, VALUE_TEXT},
		{"seed", &parts->seed, NULL, VALUE_UINT},
		{"seq_len", &parts->seq_len, NULL, VALUE_UINT},
		{"extra", &parts->extra, NULL, VALUE_UINT},
		{"stride", &parts->stride, NULL, VALUE_UINT},
		{"epochs", &parts->epochs, NULL, VALUE_UINT},
		{"samples", &parts->samples, NULL, VALUE_UINT},
		{"datasets", NULL, &parts->datasets, VALUE_ARRAY},
		{"next", &parts->next, NULL, VALUE_UINT},
		{"base", NULL, &parts->base, VALUE_ARRAY},
		{"phase", NULL, &parts->phase, VALUE_ARRAY},
		{"mixes", NULL, &parts->mixes, VALUE_ARRAY},
	};

	enum { KEYS = sizeof(keys) / sizeof(keys[0]) };
	const struct value *at[KEYS] = {0}, *v = map + 1;

	for (uint32_t i = 0; i < map->count; i++) {
		const struct value *value = value_skip(v, end);

		for (size_t k = 0; k < KEYS; k++)
			if (value_is(v, keys[k].key))
				at[k] = value;
		v = value_skip(value, end);
	}
	memset(parts, 0, sizeof(*parts));
	for (size_t k = 0; k < KEYS; k++) {
		if (!at[k] || at[k]->type != keys[k].type)
			return fault_set(fault, FAULT_CURSOR, keys[k].key, PHRASE_MISSING);
		if (keys[k].number)
			*keys[k].number = at[k]->number;
		else
			*keys[k].value = at[k];
	}
	return true;
}

/* An array of exactly @n unsigned numbers. */
static bool read_list(const struct value *array, uint64_t *to, uint32_t n)
{
	assert(array->type == VALUE_ARRAY);
	if (array->count != n)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (array[1 + i].type != VALUE_UINT)
			return false;
		to[i] = array[1 + i].number;
	}
	return true;
}

/* @to: [LIMIT_NAME_BYTES + 1] */
static bool read_name(const struct value *text, char *to)
{
	if (text->count > LIMIT_NAME_BYTES || memchr(text->bytes, 0, text->count))
		return false;
	memcpy(to, text->bytes, text->count);
	to[text->count] = 0;
	return true;
}

/* @v: array of name, windows, digest, shuffle, block, group, slide, max_epochs, lo, hi. */
static bool read_source(const struct value *v, char *name, struct cursor_source *s)
{
	uint64_t n[DATASET_VALUES - 2];

	if (v->type != VALUE_ARRAY || v->count != DATASET_VALUES - 1 || v[1].type != VALUE_TEXT ||
		!read_name(&v[1], name))
		return false;
	for (int i = 0; i < DATASET_VALUES - 2; i++) {
		if (v[2 + i].type != VALUE_UINT)
			return false;
		n[i] = v[2 + i].number;
	}
	if (n[2] > ORDER_BLOCK || n[3] > UINT32_MAX || n[4] > UINT32_MAX || n[5] > 1)
		return false;
	*s = (struct cursor_source){
		.name = name,
		.windows = n[0],
		.digest = n[1],
		.shuffle = (enum order_shuffle)n[2],
		.block = (uint32_t)n[3],
		.group = (uint32_t)n[4],
		.slide = n[5],
		.max_epochs = n[6],
		.lo = n[7],
		.hi = n[8],
	};
	return s->hi > 0 || s->lo == 0;
}

static bool decode_identity(struct cursor *out, const struct parts *parts, struct fault *fault)
{
	struct cursor identity = {
		.seed = parts->seed,
		.seq_len = parts->seq_len,
		.extra = parts->extra,
		.stride = parts->stride,
		.epochs = parts->epochs,
		.samples = parts->samples,
	};
	uint32_t n = parts->datasets->count;
	struct cursor_source *sources = calloc(n ? n : 1, sizeof(*sources));
	char(*names)[LIMIT_NAME_BYTES + 1] = calloc(n ? n : 1, sizeof(*names));
	bool ok = false;

	if (!sources || !names) {
		fault_memory(fault);
		goto out;
	}
	if (!read_name(parts->stream, identity.stream)) {
		fault_set(fault, FAULT_CURSOR, "stream", "must be " PHRASE_NAME);
		goto out;
	}
	for (uint32_t d = 0; d < n; d++)
		if (!read_source(parts->datasets + 1 + (size_t)d * DATASET_VALUES, names[d],
			    &sources[d])) {
			fault_set(fault, FAULT_CURSOR, "datasets", "entry %u is not a dataset", d);
			goto out;
		}
	ok = cursor_identity(out, &identity, sources, n, fault);
out:
	free(sources);
	free(names);
	return ok;
}

/* Units must be possible for the weights or epochs of these datasets. */
static bool check_units(
	const struct cursor *c, const uint64_t *units, uint32_t n, struct fault *fault)
{
	uint64_t expected[LIMIT_DATASETS];
	u128 sum = 0;

	assert(n > 0 && n <= c->datasets);
	if (c->epochs) {
		return (n == c->datasets && cursor_epoch_units(c, expected, fault) &&
			       memcmp(units, expected, n * sizeof(*units)) == 0) ||
		       fault_set(fault, FAULT_CURSOR, "units",
			       "in a stream with epochs, must be the windows of each dataset times "
			       "epochs");
	}
	for (uint32_t d = 0; d < n; d++) {
		if (units[d] > 0 && c->order[d].windows == 0)
			return fault_set(fault, FAULT_CURSOR, "units",
				"must be 0 for a dataset without windows");
		sum += units[d];
	}
	return sum == ORDER_UNITS || fault_set(fault, FAULT_CURSOR, "units", "must sum to 2^32");
}

static bool check_served(const struct cursor *c, const uint64_t *base, uint32_t n, uint64_t start,
	struct fault *fault)
{
	u128 sum = 0;

	for (uint32_t d = 0; d < n; d++) {
		if (base[d] > 0 && c->order[d].windows == 0)
			return fault_set(fault, FAULT_CURSOR, "base",
				"must be 0 for a dataset without windows");
		sum += base[d];
	}
	return sum == start ||
	       fault_set(fault, FAULT_CURSOR, "base", "must sum to the start of the mix");
}

/* The first segment, whose base and phase are stored. */
static struct order_segment *decode_first(const struct cursor *c, const struct parts *parts,
	uint64_t start, const uint64_t *units, uint32_t n, struct fault *fault)
{
	uint64_t base[LIMIT_DATASETS], phase[LIMIT_DATASETS] = {0};

	assert(n > 0 && n <= c->datasets);
	if (!read_list(parts->base, base, n) || !read_list(parts->phase, phase, order_padded(n))) {
		fault_set(fault, FAULT_CURSOR, "base", "base and phase do not match the mix");
		return NULL;
	}
	if (!check_served(c, base, n, start, fault))
		return NULL;
	if (phase[0] != 0 || (c->epochs && start != 0)) {
		fault_set(fault, FAULT_CURSOR, phase[0] ? "phase" : "mixes",
			"its first number must be 0");
		return NULL;
	}
	return order_segment_load(start, units, base, phase, n, fault);
}

/* The list: start, units, start, units, … A start is one value, otherwise it is rejected. */
static bool decode_mixes(
	struct cursor *c, const struct parts *parts, const struct value *end, struct fault *fault)
{
	static const char wrong[] = "a mix does not follow from the one before it";
	const struct value *v = parts->mixes + 1;
	uint64_t units[LIMIT_DATASETS];
	uint32_t count = parts->mixes->count;

	if (count < 2 || count % 2 != 0)
		return fault_set(fault, FAULT_CURSOR, "mixes", "must be pairs of start and units");
	for (uint32_t i = 0; i < count; i += 2) {
		const struct value *start = v, *list = v + 1;
		struct order_segment *s, *before = i > 0 ? c->segment[c->segments - 1] : NULL;
		uint32_t n = list->count;

		if (start->type != VALUE_UINT || list->type != VALUE_ARRAY || n < 1 ||
			n > c->datasets || !read_list(list, units, n))
			return fault_set(
				fault, FAULT_CURSOR, "mixes", "must be pairs of start and units");
		if (!check_units(c, units, n, fault))
			return false;
		if (before &&
			(c->epochs || n < before->datasets || start->number % LIMIT_BLOCK != 0 ||
				start->number <= before->start))
			return fault_set(fault, FAULT_CURSOR, "mixes", wrong);
		s = before ? order_segment_next(before, start->number, units, n)
			   : decode_first(c, parts, start->number, units, n, fault);
		if (!s && !before)
			return false;
		if (!cursor_append(c, s))
			return fault_memory(fault);
		v = value_skip(list, end);
	}
	return true;
}

static bool decode_map(
	struct cursor *out, const struct value *values, int count, struct fault *fault)
{
	struct parts parts;

	if (values[0].type != VALUE_MAP)
		return fault_set(fault, FAULT_CURSOR, "cursor", "must be a MessagePack map");
	if (!find_parts(&parts, values, values + count, fault))
		return false;
	if (parts.order != ORDER_VERSION)
		return fault_set(fault, FAULT_CURSOR, "order",
			"the cursor has order version %" PRIu64
			", this tokend supports %d; install a newer tokend",
			parts.order, ORDER_VERSION);
	if (!decode_identity(out, &parts, fault) ||
		!decode_mixes(out, &parts, values + count, fault))
		return false;
	if (parts.next < out->segment[0]->start || parts.next > cursor_end(out))
		return fault_set(fault, FAULT_CURSOR, "next", "%" PRIu64 " is outside the stream",
			parts.next);
	if (cursor_bytes_most(out) >
		LIMIT_CURSOR_BYTES) /* at another position it could not be encoded */
		return fault_set(fault, FAULT_CURSOR, "mixes", "%u are too many", out->segments);
	out->next = parts.next;
	return true;
}

bool cursor_begins(const void *bytes, size_t n)
{
	const struct header is = {.magic = "tkdc", .version = CURSOR_VERSION};

	return n > HEADER_BYTES && memcmp(bytes, &is, offsetof(struct header, checksum)) == 0;
}

size_t cursor_length(const void *bytes, size_t n)
{
	struct value *values;
	size_t used;
	int count;

	if (!cursor_begins(bytes, n))
		return 0;
	n = n < LIMIT_CURSOR_BYTES ? n : LIMIT_CURSOR_BYTES;
	values = malloc((n - HEADER_BYTES) * sizeof(*values));
	if (!values)
		return 0;
	count = unpack_first((const char *)bytes + HEADER_BYTES, n - HEADER_BYTES, values,
		n - HEADER_BYTES, &used);

	bool map = count > 0 && values[0].type == VALUE_MAP;

	free(values);
	return map ? HEADER_BYTES + used : 0;
}

bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault)
{
	struct header head;
	bool ok = false;

	memset(out, 0, sizeof(*out));
	if (n < 8 || memcmp(bytes, "tkdc", sizeof(head.magic)) != 0)
		return fault_set(
			fault, FAULT_CURSOR, "cursor", "these %zu bytes are not a cursor", n);
	memcpy(&head, bytes, n < sizeof(head) ? n : sizeof(head));
	if (head.version != CURSOR_VERSION)
		return fault_set(fault, FAULT_CURSOR, "version",
			"the cursor has format version %" PRIu32
			", this tokend supports %d; use the tokend that wrote it",
			head.version, CURSOR_VERSION);
	if (n <= HEADER_BYTES || n > LIMIT_CURSOR_BYTES)
		return fault_set(fault, FAULT_CURSOR, "cursor",
			"%zu bytes; must be %d to %d: it is cut short, or not a cursor", n,
			HEADER_BYTES + 1, LIMIT_CURSOR_BYTES);

	const char *rest = (const char *)bytes + HEADER_BYTES;
	size_t max = n - HEADER_BYTES; /* no value is shorter than a byte */

	if (head.checksum != order_checksum(rest, max))
		return fault_set(fault, FAULT_CURSOR, "checksum",
			"does not match: the cursor is damaged (torn write, flipped bit); use an "
			"earlier one");

	struct value *values = malloc(max * sizeof(*values));

	if (!values)
		return fault_memory(fault);

	int count = unpack(rest, max, values, max);

	ok = count > 0 ? decode_map(out, values, count, fault)
		       : fault_set(fault, FAULT_CURSOR, "cursor", "not MessagePack");
	free(values);
	if (ok)
		cursor_check(out);
	else
		cursor_free(out);
	return ok;
}
