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

typedef unsigned __int128 u128;

enum { HEADER_BYTES = 16, DATASET_VALUES = 8 };

static const char magic[4] = {'t', 'k', 'd', 'c'};

static void put_le(unsigned char *to, uint64_t value, int bytes)
{
	assert(bytes > 0 && bytes <= 8);
	for (int i = 0; i < bytes; i++)
		to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_le(const unsigned char *from, int bytes)
{
	uint64_t value = 0;

	assert(bytes > 0 && bytes <= 8);
	for (int i = 0; i < bytes; i++)
		value |= (uint64_t)from[i] << 8 * i;
	return value;
}

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

static void pack_list(struct pack *p, const char *key, const uint64_t *values, uint32_t n)
{
	pack_key(p, key);
	pack_numbers(p, values, n);
}

static void pack_datasets(struct pack *p, const struct cursor *c)
{
	pack_key(p, "datasets");
	pack_array(p, c->datasets);
	for (uint32_t d = 0; d < c->datasets; d++) {
		const struct order_dataset *o = &c->order[d];

		pack_array(p, DATASET_VALUES - 1);
		pack_text(p, c->dataset[d].name, strlen(c->dataset[d].name));
		pack_uint(p, o->windows);
		pack_uint(p, c->dataset[d].digest);
		pack_uint(p, o->shuffle);
		pack_uint(p, o->block);
		pack_uint(p, o->group);
		pack_uint(p, o->slide);
	}
}

/* Base and phase of pending segments are derived from the current one. */
static void pack_pending(struct pack *p, const struct cursor *c)
{
	pack_key(p, "pending");
	pack_array(p, 2 * (c->segments - 1));
	for (uint32_t i = 1; i < c->segments; i++) {
		const struct order_segment *s = c->segment[i];

		pack_uint(p, s->start);
		pack_numbers(p, s->units, s->datasets);
	}
}

static void pack_limits(struct pack *p, const struct cursor *c)
{
	pack_key(p, "limits");
	pack_array(p, c->datasets);
	for (uint32_t d = 0; d < c->datasets; d++)
		pack_uint(p, c->dataset[d].max_epochs);
}

/* Three numbers a dataset: the windows of its path, and its part of them. 0: it has every one. */
static void pack_parts(struct pack *p, const struct cursor *c)
{
	pack_key(p, "parts");
	pack_array(p, 3 * c->datasets);
	for (uint32_t d = 0; d < c->datasets; d++) {
		uint64_t of = c->order[d].part.of;

		pack_uint(p, of);
		pack_uint(p, of ? c->dataset[d].lo : 0);
		pack_uint(p, of ? c->dataset[d].hi : 0);
	}
}

size_t cursor_encode(const struct cursor *c, void *bytes, size_t capacity)
{
	unsigned char *head = bytes;
	const struct order_segment *now = c->segment[0],
				   *then = c->segments == 2 ? c->segment[1] : NULL;
	bool limited = cursor_limited(c), parted = cursor_parted(c);

	cursor_check(c);
	unsigned version = parted ? 3 : limited || c->segments > 2 ? 2 : 1;

	if (capacity <= HEADER_BYTES)
		return 0;

	struct pack p = pack_into(head + HEADER_BYTES, capacity - HEADER_BYTES);

	pack_map(&p, version >= 2 ? 15 + limited + parted : then ? 16 : 14);
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
	pack_pair(&p, "start", now->start);
	pack_list(&p, "units", now->units, now->datasets);
	pack_list(&p, "base", now->base, now->datasets);
	pack_list(&p, "phase", now->phase, now->padded);
	if (version >= 2) {
		if (limited)
			pack_limits(&p, c);
		if (parted)
			pack_parts(&p, c);
		pack_pending(&p, c);
	} else if (then) {
		pack_pair(&p, "pending_start", then->start);
		pack_list(&p, "pending_units", then->units, then->datasets);
	}
	if (p.full)
		return 0;
	assert(p.length <= capacity - HEADER_BYTES);
	memcpy(head, magic, 4);
	put_le(head + 4, version, 4);
	put_le(head + 8, order_checksum(p.bytes, p.length), 8);
	return HEADER_BYTES + p.length;
}

/* The members of the map, before they are checked. */
struct parts {
	uint64_t order, seed, seq_len, extra, stride, epochs, samples, next, start, pending_start;
	const struct value *stream, *datasets, *units, *base, *phase,
		*pending_units;		      /* version 1 */
	const struct value *limits, *pending; /* version 2 */
	const struct value *parts;	      /* version 3 */
};

static bool find_parts(struct parts *parts, uint64_t version, const struct value *map,
	const struct value *end, struct fault *fault)
{
	bool second = version >= 2, third = version >= 3;
	const struct {
		const char *key;
		uint64_t *number;	    /* or */
		const struct value **value; /* a text or an array */
		enum value_type type;
		bool optional, unknown;
	} keys[] = {
		{"order", &parts->order, NULL, VALUE_UINT, false, false},
		{"stream", NULL, &parts->stream, VALUE_TEXT, false, false},
		{"seed", &parts->seed, NULL, VALUE_UINT, false, false},
		{"seq_len", &parts->seq_len, NULL, VALUE_UINT, false, false},
		{"extra", &parts->extra, NULL, VALUE_UINT, false, false},
		{"stride", &parts->stride, NULL, VALUE_UINT, false, false},
		{"epochs", &parts->epochs, NULL, VALUE_UINT, false, false},
		{"samples", &parts->samples, NULL, VALUE_UINT, false, false},
		{"datasets", NULL, &parts->datasets, VALUE_ARRAY, false, false},
		{"next", &parts->next, NULL, VALUE_UINT, false, false},
		{"start", &parts->start, NULL, VALUE_UINT, false, false},
		{"units", NULL, &parts->units, VALUE_ARRAY, false, false},
		{"base", NULL, &parts->base, VALUE_ARRAY, false, false},
		{"phase", NULL, &parts->phase, VALUE_ARRAY, false, false},
		{"pending_start", &parts->pending_start, NULL, VALUE_UINT, true, second},
		{"pending_units", NULL, &parts->pending_units, VALUE_ARRAY, true, second},
		{"limits", NULL, &parts->limits, VALUE_ARRAY, true, !second},
		{"pending", NULL, &parts->pending, VALUE_ARRAY, !second, !second},
		{"parts", NULL, &parts->parts, VALUE_ARRAY, !third, !third},
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
		const struct value *found = at[k];

		if (!found && (keys[k].unknown || keys[k].optional))
			continue;
		if (keys[k].unknown) /* the version is not in the checksum */
			return fault_set(fault, FAULT_CURSOR, keys[k].key,
				"is not in version %" PRIu64, version);
		if (!found || found->type != keys[k].type)
			return fault_set(fault, FAULT_CURSOR, keys[k].key, PHRASE_MISSING);
		if (keys[k].number)
			*keys[k].number = found->number;
		else
			*keys[k].value = found;
	}
	if (!!parts->pending_start != !!parts->pending_units)
		return fault_set(fault, FAULT_CURSOR, "pending_start",
			"a pending mix needs both pending_start and pending_units");
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

/* @v: array of name, windows, digest, shuffle, block, group, slide. */
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
	};
	return true;
}

/* @v: three numbers for each of the @n datasets. */
static bool read_parts(
	const struct value *v, struct cursor_source *sources, uint32_t n, struct fault *fault)
{
	uint64_t numbers[3 * LIMIT_DATASETS];
	struct order_dataset part;

	if (n > LIMIT_DATASETS || !read_list(v, numbers, 3 * n))
		return fault_set(
			fault, FAULT_CURSOR, "parts", "must have three numbers for each dataset");
	for (uint32_t d = 0; d < n; d++) {
		const uint64_t *p = &numbers[3 * d]; /* windows of the path, lo, hi */
		struct cursor_source *s = &sources[d];

		if (p[0] == 0 && p[1] == 0 && p[2] == 0)
			continue;
		if (p[1] >= p[2] || p[2] > ORDER_UNITS || !order_part(&part, p[0], p[1], p[2]) ||
			part.part.of == 0 || part.windows != s->windows)
			return fault_set(fault, FAULT_CURSOR, "parts",
				"dataset %u does not have the windows of its part", d);
		s->windows = p[0];
		s->lo = p[1];
		s->hi = p[2];
	}
	return true;
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
	for (uint32_t d = 0; parts->limits && d < n; d++) {
		const struct value *limit = parts->limits + 1 + d;

		if (parts->limits->count != n || limit->type != VALUE_UINT) {
			fault_set(fault, FAULT_CURSOR, "limits",
				"must have one number for each dataset");
			goto out;
		}
		sources[d].max_epochs = limit->number;
	}
	ok = (!parts->parts || read_parts(parts->parts, sources, n, fault)) &&
	     cursor_identity(out, &identity, sources, n, fault);
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

/* The mix that follows the last one so far. */
static bool decode_next(struct cursor *c, uint64_t start, const struct value *list, uint64_t next,
	struct fault *fault)
{
	assert(c->segments > 0 && list->type == VALUE_ARRAY);
	const struct order_segment *before = c->segment[c->segments - 1];
	uint64_t units[LIMIT_DATASETS];
	uint32_t n = list->count;

	if (c->epochs || n < before->datasets || n > c->datasets || !read_list(list, units, n) ||
		!check_units(c, units, n, fault) || start % LIMIT_BLOCK != 0 ||
		start <= before->start || start <= next)
		return fault_set(fault, FAULT_CURSOR, "pending",
			"a mix does not follow from the one before it");
	return cursor_append(c, order_segment_next(before, start, units, n)) || fault_memory(fault);
}

/* @list: start, units, start, units, … A start is one value, otherwise it is rejected. */
static bool decode_pending(struct cursor *c, const struct value *list, const struct value *end,
	uint64_t next, struct fault *fault)
{
	const struct value *v = list + 1;

	if (list->count % 2 != 0)
		return fault_set(
			fault, FAULT_CURSOR, "pending", "must be pairs of start and units");
	for (uint32_t i = 0; i < list->count; i += 2) {
		const struct value *start = v, *units = v + 1;

		if (start->type != VALUE_UINT || units->type != VALUE_ARRAY)
			return fault_set(
				fault, FAULT_CURSOR, "pending", "must be pairs of start and units");
		if (!decode_next(c, start->number, units, next, fault))
			return false;
		v = value_skip(units, end);
	}
	return true;
}

static bool decode_mix(
	struct cursor *c, const struct parts *parts, const struct value *end, struct fault *fault)
{
	assert(parts->units && parts->base && parts->phase); /* find_parts() checked it */
	uint64_t units[LIMIT_DATASETS], base[LIMIT_DATASETS], phase[LIMIT_DATASETS] = {0};
	uint32_t n = parts->units->count;

	if (n < 1 || n > c->datasets || !read_list(parts->units, units, n) ||
		!read_list(parts->base, base, n) ||
		!read_list(parts->phase, phase, order_padded(n)))
		return fault_set(fault, FAULT_CURSOR, "units",
			"units, base and phase do not match the datasets");
	if (!check_units(c, units, n, fault) || !check_served(c, base, n, parts->start, fault))
		return false;
	if (phase[0] != 0)
		return fault_set(fault, FAULT_CURSOR, "phase", "its first number must be 0");
	if (c->epochs && parts->start != 0)
		return fault_set(fault, FAULT_CURSOR, "start", "must be 0 in a stream with epochs");

	struct order_segment *s = order_segment_load(parts->start, units, base, phase, n, fault);

	if (!s)
		return false;
	if (!cursor_append(c, s))
		return fault_memory(fault);
	return parts->pending	      ? decode_pending(c, parts->pending, end, parts->next, fault)
	       : parts->pending_units ? decode_next(c, parts->pending_start, parts->pending_units,
						parts->next, fault)
				      : true;
}

static bool decode_map(struct cursor *out, uint64_t version, const struct value *values, int count,
	struct fault *fault)
{
	struct parts parts;

	if (values[0].type != VALUE_MAP)
		return fault_set(fault, FAULT_CURSOR, "cursor", "must be a MessagePack map");
	if (!find_parts(&parts, version, values, values + count, fault))
		return false;
	if (parts.order != ORDER_VERSION)
		return fault_set(fault, FAULT_CURSOR, "order",
			"the cursor has order version %" PRIu64
			", this tokend supports %d; install a newer tokend",
			parts.order, ORDER_VERSION);
	if (!decode_identity(out, &parts, fault) || !decode_mix(out, &parts, values + count, fault))
		return false;
	if (parts.next < parts.start || parts.next > cursor_end(out))
		return fault_set(fault, FAULT_CURSOR, "next", "%" PRIu64 " is outside the stream",
			parts.next);
	out->next = parts.next;
	return true;
}

bool cursor_begins(const void *bytes, size_t n)
{
	const unsigned char *head = bytes;

	return n > HEADER_BYTES && memcmp(head, magic, 4) == 0 && get_le(head + 4, 4) >= 1 &&
	       get_le(head + 4, 4) <= CURSOR_VERSION;
}

size_t cursor_length(const void *bytes, size_t n)
{
	const unsigned char *head = bytes;
	struct value *values;
	size_t used;
	int count;

	if (!cursor_begins(bytes, n))
		return 0;
	n = n < LIMIT_CURSOR_BYTES ? n : LIMIT_CURSOR_BYTES;
	values = malloc((n - HEADER_BYTES) * sizeof(*values));
	if (!values)
		return 0;
	count = unpack_first(
		head + HEADER_BYTES, n - HEADER_BYTES, values, n - HEADER_BYTES, &used);

	bool map = count > 0 && values[0].type == VALUE_MAP;

	free(values);
	return map ? HEADER_BYTES + used : 0;
}

bool cursor_decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault)
{
	const unsigned char *head = bytes;
	bool ok = false;

	memset(out, 0, sizeof(*out));
	if (n < 8 || memcmp(head, magic, 4) != 0)
		return fault_set(
			fault, FAULT_CURSOR, "cursor", "these %zu bytes are not a cursor", n);

	uint64_t version = get_le(head + 4, 4);

	if (version > CURSOR_VERSION)
		return fault_set(fault, FAULT_CURSOR, "version",
			"the cursor has format version %" PRIu64
			", this tokend supports 1 to %d; install a newer tokend",
			version, CURSOR_VERSION);
	if (version < 1)
		return fault_set(fault, FAULT_CURSOR, "version", "0; must be 1 or more");
	if (n <= HEADER_BYTES || n > LIMIT_CURSOR_BYTES)
		return fault_set(fault, FAULT_CURSOR, "cursor",
			"%zu bytes; must be %d to %d: it is cut short, or not a cursor", n,
			HEADER_BYTES + 1, LIMIT_CURSOR_BYTES);
	if (get_le(head + 8, 8) != order_checksum(head + HEADER_BYTES, n - HEADER_BYTES))
		return fault_set(fault, FAULT_CURSOR, "checksum",
			"does not match: the cursor is damaged (torn write, flipped bit); use an "
			"earlier one");

	size_t max = n - HEADER_BYTES; /* no value is shorter than a byte */
	struct value *values = malloc(max * sizeof(*values));

	if (!values)
		return fault_memory(fault);

	int count = unpack(head + HEADER_BYTES, n - HEADER_BYTES, values, max);

	ok = count > 0 ? decode_map(out, version, values, count, fault)
		       : fault_set(fault, FAULT_CURSOR, "cursor", "not MessagePack");
	free(values);
	if (ok)
		cursor_check(out);
	else
		cursor_free(out);
	return ok;
}
