/* The cursor as a value: its bytes, its edits, and what it refuses to be. */
#include "proto/cursor.h"

#include "proto/pack.h"
#include "tests/unit/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { HEADER = 16 }; /* magic, version, checksum */

struct bytes {
	uint8_t at[LIMIT_CURSOR_BYTES];
	size_t n;
};

static struct cursor identity(uint64_t epochs, uint64_t samples)
{
	return (struct cursor){.stream = "train",
		.seed = 42,
		.seq_len = 64,
		.extra = 1,
		.stride = 64,
		.epochs = epochs,
		.samples = samples};
}

static const struct cursor_source three[] = {
	{"web", .7, 1249, 0xb3960afe8c9f9ec6, 64, 64, ORDER_GLOBAL, false, 0},
	{"code", .25, 332, 0xe6b64183fa5596cf, 8, 3, ORDER_BLOCK, false, 0},
	{"math", .05, 46, 7, 64, 64, ORDER_NONE, true, 0},
};
static const struct cursor_source late = {"late", 1, 1000, 9, 64, 64, ORDER_GLOBAL, false, 0};

static struct cursor begin_as(uint64_t epochs, uint64_t samples)
{
	struct cursor id = identity(epochs, samples), c;
	struct fault why;

	assert_true(cursor_begin(&c, &id, three, 3, NULL, 0, &why));
	return c;
}

static struct cursor begin(void)
{
	return begin_as(0, 0);
}

/* code ends after two epochs, math after three. */
static struct cursor begin_limited(uint64_t samples)
{
	struct cursor_source sources[] = {three[0], three[1], three[2]};
	struct cursor id = identity(0, samples), c;
	struct fault why;

	sources[1].max_epochs = 2;
	sources[2].max_epochs = 3;
	assert_true(cursor_begin(&c, &id, sources, 3, NULL, 0, &why));
	return c;
}

static struct bytes *encode(const struct cursor *c)
{
	struct bytes *b = malloc(sizeof(*b));

	assert_non_null(b);
	b->n = cursor_encode(c, b->at, sizeof(b->at));
	assert_true(b->n > HEADER);
	return b;
}

static bool equal_bytes(const struct cursor *a, const struct cursor *b)
{
	struct bytes *x = encode(a), *y = encode(b);
	bool equal = x->n == y->n && memcmp(x->at, y->at, x->n) == 0;

	free(x);
	free(y);
	return equal;
}

/* Decodes a copy of exactly @n bytes, so that a sanitizer sees any byte read behind them. */
static bool decode(struct cursor *out, const void *bytes, size_t n, struct fault *why)
{
	void *copy = malloc(n ? n : 1);
	bool ok;

	assert_non_null(copy);
	memcpy(copy, bytes, n);
	memset(why, 0, sizeof(*why));
	ok = cursor_decode(out, copy, n, why);
	free(copy);
	if (!ok)
		assert_true(why->field[0] && why->text[0] && !strchr(why->text, '\n'));
	return ok;
}

static void assert_refused(
	struct cursor *c, bool ok, const struct fault *why, const char *field, const char *text)
{
	cursor_free(c);
	assert_false(ok);
	assert_string_equal(why->field, field);
	if (!strstr(why->text, text))
		fail_msg("\"%s\" does not say \"%s\"", why->text, text);
}

static struct order_place at(const struct cursor *c, uint64_t position)
{
	struct order o = cursor_order(c);
	struct order_place p;

	assert_true(order_at(&o, position, &p));
	return p;
}

static bool same_place(struct order_place a, struct order_place b)
{
	return a.dataset == b.dataset && a.epoch == b.epoch && a.window == b.window;
}

/* ---- beginning ---- */

static void begins(void **state)
{
	struct cursor c = begin(), f = begin_as(2, 0), s = begin_as(0, 5000);

	(void)state;
	assert_int_equal(c.next, 0);
	assert_int_equal(c.datasets, 3);
	assert_int_equal(cursor_end(&c), UINT64_MAX);
	assert_int_equal(cursor_end(&f), 2 * 1627);
	assert_int_equal(cursor_end(&s), 5000);
	assert_true(same_place(at(&c, 0), (struct order_place){1, 0, 52}));
	assert_true(same_place(at(&s, 1024), (struct order_place){0, 0, 512}));
	assert_int_equal(cursor_find(&c, "math"), 2);
	assert_int_equal(cursor_find(&c, "maths"), -1);
	cursor_free(&c);
	cursor_free(&f);
	cursor_free(&s);
}

static void epochs_are_those_of_the_text(void **state)
{
	struct cursor c = begin_as(1, 0);

	(void)state;
	assert_true(same_place(at(&c, 0), (struct order_place){0, 0, 588}));
	assert_true(same_place(at(&c, 1626), (struct order_place){1, 0, 26}));
	cursor_free(&c);
}

static void refuse_source(const struct cursor_source *changed, uint64_t epochs, const char *field)
{
	struct cursor_source sources[3];
	struct cursor id = identity(epochs, 0), c;
	struct fault why;
	bool ok;

	memcpy(sources, three, sizeof(sources));
	sources[1] = *changed;
	ok = cursor_begin(&c, &id, sources, 3, NULL, 0, &why);
	assert_refused(&c, ok, &why, field, "");
}

static void begin_refuses_a_dataset(void **state)
{
	struct cursor_source s;

	(void)state;
#define WITH(change, epochs, field) (s = three[1], s.change, refuse_source(&s, epochs, field))
	WITH(weight = NAN, 0, "dataset code: weight");
	WITH(weight = -1, 0, "dataset code: weight");
	WITH(weight = INFINITY, 0, "dataset code: weight");
	WITH(weight = 1e-12, 0, "dataset code: weight");
	WITH(windows = 0, 0, "dataset code: weight");
	WITH(windows = UINT64_MAX, 2, "epochs");
	WITH(block = 0, 0, "dataset code: block");
	WITH(block = (UINT32_C(1) << 31) + 1, 0, "dataset code: block");
	WITH(group = 0, 0, "dataset code: group");
	WITH(name = "web", 0, "dataset web: name");
	WITH(name = "", 0, "dataset : name");
#undef WITH
}

static void begin_refuses_an_identity(void **state)
{
	struct cursor id, c;
	struct fault why;
	bool ok;

	(void)state;
#define WITH(change, field)                                                                        \
	(id = identity(0, 0), id.change, ok = cursor_begin(&c, &id, three, 3, NULL, 0, &why),      \
		assert_refused(&c, ok, &why, field, ""))
	WITH(seq_len = 0, "seq_len");
	WITH(stride = 0, "stride");
	WITH(extra = UINT64_MAX, "extra");
	WITH(stream[0] = 0, "stream");
	WITH(epochs = id.samples = 1, "samples");
#undef WITH
	id = identity(0, 0);
	ok = cursor_begin(&c, &id, three, 0, NULL, 0, &why);
	assert_refused(&c, ok, &why, "datasets", "");
}

static void begin_refuses_no_weight_at_all(void **state)
{
	struct cursor_source sources[3];
	struct cursor id = identity(0, 0), c;
	struct fault why;
	bool ok;

	(void)state;
	memcpy(sources, three, sizeof(sources));
	sources[0].weight = sources[1].weight = sources[2].weight = 0;
	ok = cursor_begin(&c, &id, sources, 3, NULL, 0, &why);
	assert_refused(&c, ok, &why, "weights", "");
}

/* An empty dataset is fine where nothing asks for it. */
static void begin_allows_an_empty_dataset(void **state)
{
	struct cursor_source sources[3];
	struct cursor id = identity(1, 0), c;
	struct fault why;

	(void)state;
	memcpy(sources, three, sizeof(sources));
	sources[1].windows = 0;
	assert_true(cursor_begin(&c, &id, sources, 3, NULL, 0, &why));
	assert_int_equal(cursor_end(&c), 1249 + 46);
	cursor_free(&c);
	id = identity(0, 0);
	sources[1].weight = 0;
	assert_true(cursor_begin(&c, &id, sources, 3, NULL, 0, &why));
	cursor_free(&c);
}

/* ---- bytes ---- */

/* Cursors of every shape: plain, finite, moved, mixed, pending, with more datasets. */
static unsigned shapes(struct cursor *c)
{
	struct fault why;
	unsigned n = 0;

	c[n++] = begin();
	c[n++] = begin_as(3, 0);
	c[n++] = begin_as(0, 1 << 20);
	c[n] = begin();
	assert_true(cursor_seek(&c[n++], UINT64_C(1) << 62, &why));
	c[n] = begin();
	assert_true(cursor_seek(&c[n], 1000, &why));
	assert_true(cursor_mix(&c[n++], 2048, (double[]){.5, .3, .2}, &why));
	c[n] = begin();
	assert_true(cursor_mix(&c[n], 2048, (double[]){.5, .3, .2}, &why));
	assert_true(cursor_seek(&c[n++], 3000, &why));
	c[n] = begin();
	assert_true(cursor_add(&c[n++], &late, &why));
	c[n] = begin();
	assert_true(cursor_add(&c[n], &late, &why));
	assert_true(cursor_mix(&c[n++], 1024, (double[]){.5, 0, .2, 7}, &why));
	c[n++] = begin_limited(0);
	c[n++] = begin_limited(5000);
	c[n] = begin_limited(0);
	assert_true(cursor_seek(&c[n++], 200000, &why)); /* limits, nothing pending */
	c[n] = begin();
	assert_true(cursor_schedule(&c[n++], NULL,
		(const struct cursor_step[]){{2048, 2048, 1, (double[]){1, 2, 3}},
			{4096, 8192, 3, (double[]){0, 1, 0}},
			{10240, 10240, 1, (double[]){3, 0, 1}}},
		3, NULL, &why));
	return n;
}

/* What an older tokend wrote means the same for ever, and is still written where it can be. */
static const char version_1[] = "746b646301000000ad2bb02d99a66438de0010a56f7264657201a673747265616d"
				"a5747261696ea4736565642aa77365"
				"715f6c656e40a5657874726101a673747269646540a665706f63687300a773616d"
				"706c657300a8646174617365747393"
				"97a3776562cd04e1cfb3960afe8c9f9ec60140400097a4636f6465cd014ccfe6b6"
				"4183fa5596cf0208030097a46d6174"
				"682e0700404001a46e657874cd0bb8a5737461727400a5756e69747393ceb33333"
				"33ce40000000ce0ccccccda4626173"
				"6593000000a570686173659400ce79999999ce80000000ce06666666ad70656e64"
				"696e675f7374617274cd1000ad7065"
				"6e64696e675f756e69747393ce80000000ce4ccccccdce33333333";

static void version_1_is_unchanged(void **state)
{
	struct cursor c = begin(), back;
	struct fault why;
	struct bytes *b;
	uint8_t old[sizeof(version_1) / 2];

	(void)state;
	for (size_t i = 0; i < sizeof(old); i++)
		assert_int_equal(sscanf(version_1 + 2 * i, "%2hhx", &old[i]), 1);
	assert_true(cursor_seek(&c, 3000, &why));
	assert_true(cursor_mix(&c, 4096, (double[]){.5, .3, .2}, &why));
	b = encode(&c);
	assert_int_equal(b->n, sizeof(old));
	assert_memory_equal(b->at, old, sizeof(old));
	assert_true(decode(&back, old, sizeof(old), &why));
	assert_int_equal(cursor_fingerprint(&back, 2, 8), UINT64_C(0x82dd636840d1c351));
	cursor_free(&back);
	free(b);
	/* Only what needs it is of version 2. */
	assert_true(cursor_schedule(&c, NULL,
		(const struct cursor_step[]){{4096, 4096, 1, (double[]){.5, .3, .2}},
			{5120, 5120, 1, (double[]){1, 1, 1}}},
		2, NULL, &why));
	b = encode(&c);
	assert_int_equal(b->at[4], 2);
	free(b);
	assert_true(cursor_seek(&c, 4096, &why));
	b = encode(&c);
	assert_int_equal(b->at[4], 1);
	free(b);
	cursor_free(&c);
}

static void round_trip(void **state)
{
	struct cursor c[16], back;
	struct fault why;
	unsigned n = shapes(c);

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		assert_true(decode(&back, b->at, b->n, &why));
		assert_true(equal_bytes(&c[i], &back));
		assert_int_equal(cursor_fingerprint(&c[i], 2, 3), cursor_fingerprint(&back, 2, 3));
		assert_true(cursor_belongs(&back, &c[i], &why));
		for (uint64_t p = c[i].next; p < c[i].next + 3000 && p < cursor_end(&c[i]); p += 7)
			assert_true(same_place(at(&c[i], p), at(&back, p)));
		cursor_free(&back);
		cursor_free(&c[i]);
		free(b);
	}
}

static void shapes_differ(void **state)
{
	struct cursor c[16];
	unsigned n = shapes(c);

	(void)state;
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < a; b++)
			assert_false(equal_bytes(&c[a], &c[b]));
	for (unsigned a = 0; a < n; a++)
		cursor_free(&c[a]);
}

/* One cursor, whatever way led to it. */
static void equal_cursors_have_equal_bytes(void **state)
{
	struct cursor a = begin(), b = begin(), copy;
	struct fault why;

	(void)state;
	assert_true(cursor_mix(&a, 4096, (double[]){1, 1, 1}, &why));
	assert_true(cursor_mix(&a, 2048, (double[]){.5, .3, .2}, &why));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &why));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 2047, &why));
	assert_false(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 0, &why));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(
		&a, 2048, &why)); /* there it is the current one, as if mixed just then */
	cursor_free(&b);
	b = begin();
	assert_true(cursor_seek(&b, 2048, &why));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &why));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_copy(&copy, &a));
	assert_true(equal_bytes(&a, &copy));
	cursor_free(&a);
	cursor_free(&b);
	cursor_free(&copy);
}

static void encoding_never_passes_the_end(void **state)
{
	struct cursor c = begin();
	struct bytes *b = encode(&c);

	(void)state;
	for (size_t capacity = 0; capacity <= b->n; capacity++) {
		uint8_t *exact = malloc(capacity ? capacity : 1);

		assert_int_equal(cursor_encode(&c, exact, capacity), capacity == b->n ? b->n : 0);
		free(exact);
	}
	free(b);
	cursor_free(&c);
}

static void every_flipped_bit_is_refused(void **state)
{
	struct cursor c[16], out;
	struct fault why;
	unsigned n = shapes(c);

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		for (size_t bit = 0; bit < 8 * b->n; bit++) {
			b->at[bit / 8] ^= 1 << bit % 8;
			assert_false(decode(&out, b->at, b->n, &why));
			cursor_free(&out);
			b->at[bit / 8] ^= 1 << bit % 8;
		}
		cursor_free(&c[i]);
		free(b);
	}
}

static void truncation_is_refused_at_every_byte(void **state)
{
	struct cursor c = begin(), out;
	struct fault why;
	struct bytes *b = encode(&c);

	(void)state;
	for (size_t n = 0; n < b->n; n++) {
		assert_false(decode(&out, b->at, n, &why));
		cursor_free(&out);
	}
	b->at[b->n] = 0;
	bool ok = decode(&out, b->at, b->n + 1, &why);

	assert_refused(&out, ok, &why, "checksum", "damaged");
	free(b);
	cursor_free(&c);
}

static void put_le(uint8_t *to, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		to[i] = (uint8_t)(value >> 8 * i);
}

static void seal(struct bytes *b)
{
	put_le(b->at + 8, order_checksum(b->at + HEADER, b->n - HEADER), 8);
}

static void newer_versions_are_refused(void **state)
{
	struct cursor c = begin(), out;
	struct fault why;
	struct bytes *b = encode(&c);
	bool ok;

	(void)state;
	put_le(b->at + 4, CURSOR_VERSION + 1, 4);
	ok = decode(&out, b->at, b->n, &why);
	assert_refused(&out, ok, &why, "version", "newer");
	put_le(b->at + 4, UINT32_MAX, 4);
	ok = decode(&out, b->at, HEADER, &why); /* whatever follows: only its own readers know */
	assert_refused(&out, ok, &why, "version", "newer");
	put_le(b->at + 4, 0, 4);
	ok = decode(&out, b->at, b->n, &why);
	assert_refused(&out, ok, &why, "version", "");
	free(b);
	cursor_free(&c);
}

/* The number behind @key in the encoded map, if it is a one-byte one. */
static uint8_t *small_number(struct bytes *b, const char *key)
{
	uint8_t *found = memmem(b->at, b->n, key, strlen(key));

	assert_non_null(found);
	return found + strlen(key);
}

static void a_newer_order_is_refused(void **state)
{
	struct cursor c = begin(), out;
	struct fault why;
	struct bytes *b = encode(&c);

	(void)state;
	assert_int_equal(*small_number(b, "\xa5order"), ORDER_VERSION);
	*small_number(b, "\xa5order") = ORDER_VERSION + 1;
	seal(b);
	bool ok = decode(&out, b->at, b->n, &why);

	assert_refused(&out, ok, &why, "order", "newer");
	free(b);
	cursor_free(&c);
}

static void tampered_values_are_refused(void **state)
{
	static const char *const keys[] = {"\xa7seq_len", "\xa6stride", "\xa4next"};
	static const uint8_t values[] = {0, 0, 0xc0};
	struct cursor c = begin(), out;
	struct fault why;

	(void)state;
	for (size_t i = 0; i < COUNT(keys); i++) {
		struct bytes *b = encode(&c);

		*small_number(b, keys[i]) = values[i];
		seal(b);
		bool ok = decode(&out, b->at, b->n, &why);

		assert_refused(&out, ok, &why, keys[i] + 1, "");
		free(b);
	}
	cursor_free(&c);
}

static void another_file_is_refused(void **state)
{
	struct cursor out;
	struct fault why;
	char zeros[4096] = {0};
	bool ok;

	(void)state;
	ok = decode(&out, "", 0, &why);
	assert_refused(&out, ok, &why, "cursor", "not a cursor");
	ok = decode(&out, "{\"position\": 0, \"stream\": \"train\"}", 34, &why);
	assert_refused(&out, ok, &why, "cursor", "not a cursor");
	ok = decode(&out, zeros, sizeof(zeros), &why);
	assert_refused(&out, ok, &why, "cursor", "not a cursor");
}

/* Whatever was decoded must be safe to use: no assert, no division by 0, no overflow in the order.
 */
static void exercise(struct cursor *c, struct rng *rng)
{
	struct order o = cursor_order(c);
	struct fault why;
	double weights[LIMIT_DATASETS];
	uint8_t bytes[LIMIT_CURSOR_BYTES];
	struct order_place p;
	uint64_t back;

	for (unsigned i = 0; i < 20; i++) {
		uint64_t position = i < 10 ? c->next + i * 100 : rng_wide(rng);

		if (!order_at(&o, position, &p))
			continue;
		assert_true(order_when(&o, &p, &back));
		assert_int_equal(back, position);
	}
	for (uint32_t d = 0; d < c->datasets; d++) {
		weights[d] = c->order[d].windows > 0;
		p = (struct order_place){d, rng_wide(rng), rng_wide(rng)};
		order_when(&o, &p, &back);
	}
	for (uint32_t d = 0; d < c->datasets; d++)
		cursor_unserved(c, d, &back, &back);
	if (rng_below(rng, 2))
		cursor_remove(c, (uint32_t)rng_below(rng, c->datasets),
			cursor_mix_at(c) + rng_below(rng, 4) * 1024, &why);
	if (rng_below(rng, 2))
		cursor_schedule(c, NULL,
			&(struct cursor_step){
				c->next / 1024 * 1024, c->next / 1024 * 1024 + 8192, 4, weights},
			1, NULL, &why);
	cursor_skip(c, rng_wide(rng), &why);
	if (rng_below(rng, 2))
		cursor_mix(c, cursor_mix_at(c), weights, &why);
	cursor_seek(c, rng_wide(rng), &why);
	cursor_rewind(c, rng_wide(rng), &why);
	cursor_fingerprint(c, 1, 1);
	assert_true(cursor_encode(c, bytes, sizeof(bytes)) > 0);
}

static void decoded_is_sound(const struct bytes *b, struct rng *rng, unsigned *accepted)
{
	struct cursor out, again;
	struct fault why;

	if (decode(&out, b->at, b->n, &why)) {
		struct bytes *canonical = encode(&out);

		assert_true(decode(&again, canonical->at, canonical->n, &why));
		assert_true(equal_bytes(&out, &again));
		cursor_free(&again);
		free(canonical);
		exercise(&out, rng);
		++*accepted;
	}
	cursor_free(&out);
}

static void mutations_with_a_good_checksum(void **state)
{
	static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xcf, 0xdf, 0xff};
	struct cursor c[16];
	struct rng rng = {13};
	unsigned n = shapes(c), accepted = 0, tries = 40000;

	(void)state;
	for (unsigned i = 0; i < tries; i++) {
		struct bytes *b = encode(&c[i % n]);

		for (unsigned hits = 1 + (unsigned)rng_below(&rng, 3); hits > 0; hits--) {
			uint64_t where = HEADER + rng_below(&rng, b->n - HEADER);

			b->at[where] = rng_below(&rng, 2) ? edges[rng_below(&rng, COUNT(edges))]
							  : (uint8_t)rng_next(&rng);
		}
		if (rng_below(&rng, 8) == 0)
			b->n = HEADER + 1 + rng_below(&rng, b->n - HEADER - 1);
		seal(b);
		decoded_is_sound(b, &rng, &accepted);
		free(b);
	}
	assert_true(accepted > tries / 100 && accepted < tries);
	for (unsigned i = 0; i < n; i++)
		cursor_free(&c[i]);
}

/* Version 2 with every byte at its edges, one at a time: a sound cursor, or a refusal. */
static void every_byte_of_version_2(void **state)
{
	static const uint8_t edges[] = {0, 1, 2, 3, 0x7f, 0x80, 0x90, 0x91, 0x92, 0x9f, 0xa0, 0xc0,
		0xcd, 0xce, 0xcf, 0xdf, 0xff};
	struct cursor c[16];
	struct rng rng = {14};
	unsigned n = shapes(c), accepted = 0, tries = 0;

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		for (size_t at = HEADER; b->at[4] == 2 && at < b->n; at++) {
			uint8_t was = b->at[at];

			for (unsigned k = 0; k < COUNT(edges) + 8; k++, tries++) {
				b->at[at] =
					k < COUNT(edges) ? edges[k] : was ^ 1 << (k - COUNT(edges));
				seal(b);
				decoded_is_sound(b, &rng, &accepted);
			}
			b->at[at] = was;
		}
		cursor_free(&c[i]);
		free(b);
	}
	assert_true(tries > 10000 && accepted > tries / 100 && accepted < tries);
}

/* @key's value in the map replaced by the bytes @value. */
static struct bytes *with_value(
	const struct cursor *c, const char *key, size_t old, const char *value, size_t n)
{
	struct bytes *b = encode(c);
	uint8_t *found = memmem(b->at, b->n, key, strlen(key));

	assert_non_null(found);
	found += strlen(key);
	memmove(found + n, found + old, b->n - (size_t)(found - b->at) - old);
	memcpy(found, value, n);
	b->n += n - old;
	seal(b);
	return b;
}

static void version_2_refuses(void **state)
{
	struct cursor c = begin_limited(0), out;
	struct fault why;
	struct bytes *b;
	bool ok;

	(void)state;
#define WITH(key, old, value, field)                                                               \
	(b = with_value(&c, key, old, value, sizeof(value) - 1),                                   \
		ok = decode(&out, b->at, b->n, &why), assert_refused(&out, ok, &why, field, ""),   \
		free(b))
	WITH("\xa6limits", 4, "\x92\x00\x02", "limits");	 /* of two datasets */
	WITH("\xa6limits", 4, "\x94\x00\x02\x03\x04", "limits"); /* of four */
	WITH("\xa6limits", 4, "\x93\x00\x02\xc0", "limits");	 /* nil */
	WITH("\xa6limits", 4, "\x93\x00\x02\xff", "limits");	 /* -1 */
	WITH("\xa6limits", 4, "\x00", "limits");		 /* no list */
	WITH("\xa7pending", 1, "\x93", "cursor"); /* fewer than it says: not MessagePack */
	WITH("\xa6"
	     "epochs",
		1, "\x01", "dataset code: max_epochs"); /* limits in a stream with epochs */
	cursor_free(&c);
	c = begin_limited(0);
	assert_true(cursor_seek(&c, 200000, &why)); /* its list is empty */
	WITH("\xa7pending", 1, "\x91\x00", "pending");
	WITH("\xa7pending", 1, "\x92\x00\x00", "pending");
	WITH("\xa7pending", 1, "\x92\x00\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "pending");
	WITH("\xa7pending", 1,
		"\x92\xce\x00\x04\x00\x00\x93\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x01",
		"pending");
#define ALONE "\x93\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	WITH("\xa7pending", 1, "\x92\xce\x00\x02\x00\x00" ALONE, "pending"); /* not ahead */
	WITH("\xa7pending", 1, "\x92\xce\x00\x04\x00\x01" ALONE, "pending"); /* on no block */
	WITH("\xa7pending", 1, "\x94\xce\x00\x04\x00\x00" ALONE "\xce\x00\x04\x00\x00" ALONE,
		"pending");
	WITH("\xa7pending", 1, "\xc0", "pending");
#undef WITH
	/* And one that is fine, so that the others are refused for what they are. */
	b = with_value(
		&c, "\xa7pending", 1, "\x92\xce\x00\x04\x00\x00" ALONE, 6 + sizeof(ALONE) - 1);
#undef ALONE
	assert_true(decode(&out, b->at, b->n, &why));
	assert_int_equal(out.segments, 2);
	assert_int_equal(out.segment[1]->start, 0x40000);
	cursor_free(&out);
	free(b);
	cursor_free(&c);
}

/* ---- edits ---- */

static void skipping(void **state)
{
	struct cursor c = begin(), s = begin_as(0, 5000), same = begin();
	struct fault why;
	bool ok;

	(void)state;
	assert_true(cursor_skip(&c, 0, &why));
	assert_true(equal_bytes(&c, &same));
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &why));
	assert_true(cursor_skip(&c, 2047, &why));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_skip(&c, 1, &why));
	assert_int_equal(c.segment[0]->start, 2048);
	assert_int_equal(c.next, 2048);
	assert_true(cursor_skip(&c, UINT64_MAX - 2048, &why));
	ok = cursor_skip(&c, 1, &why);
	assert_refused(&c, ok, &why, "samples", "0 are left");
	assert_true(cursor_skip(&s, 4000, &why));
	assert_false(cursor_skip(&s, UINT64_MAX, &why));
	assert_int_equal(s.next, 4000);
	ok = cursor_skip(&s, 1001, &why);
	assert_refused(&s, ok, &why, "samples", "1000 are left");
	cursor_free(&same);
}

static void rewinding(void **state)
{
	struct cursor c = begin();
	struct fault why;

	(void)state;
	assert_true(cursor_seek(&c, 3000, &why));
	assert_true(cursor_mix(&c, 4096, (double[]){1, 1, 1}, &why));
	assert_true(cursor_rewind(&c, 3000, &why));
	assert_true(cursor_rewind(&c, 10, &why));
	assert_int_equal(c.next, 10);
	assert_int_equal(c.segments, 2); /* what was announced stays announced */
	assert_false(cursor_rewind(&c, 11, &why));
	assert_string_equal(why.field, "position");
	assert_non_null(strstr(why.text, "ahead"));
	assert_true(cursor_seek(&c, 5000, &why));
	bool ok = cursor_rewind(&c, 4095, &why);

	assert_refused(&c, ok, &why, "position", "4096");
}

static void sources_of_another_cursor(void **state)
{
	struct cursor a = begin_limited(0), b = begin_limited(0);
	struct cursor_source source;
	struct fault why;

	(void)state;
	for (uint32_t d = 0; d < 3; d++) {
		cursor_source(&a, d, &source);
		assert_string_equal(source.name, three[d].name);
		assert_int_equal(source.windows, three[d].windows);
		assert_int_equal(source.digest, three[d].digest);
		assert_int_equal(source.block, three[d].block);
		assert_int_equal(source.group, three[d].group);
		assert_int_equal(source.shuffle, three[d].shuffle);
		assert_int_equal(source.slide, three[d].slide);
		assert_int_equal(source.max_epochs, d ? d + 1 : 0);
		assert_true(source.weight == 0);
	}
	source = late;
	source.max_epochs = 7;
	assert_true(cursor_add(&a, &source, &why));
	cursor_source(&a, 3, &source);
	assert_int_equal(source.max_epochs, 7);
	assert_true(cursor_add(&b, &source, &why));
	assert_true(equal_bytes(&a, &b));
	cursor_free(&a);
	cursor_free(&b);
}

static void seeking(void **state)
{
	struct cursor c = begin(), f = begin_as(1, 0);
	struct fault why;

	(void)state;
	assert_true(cursor_seek(&c, UINT64_MAX, &why));
	assert_true(cursor_seek(&c, 0, &why));
	assert_true(cursor_seek(&f, 1627, &why)); /* the end is a place to be */
	assert_false(cursor_seek(&f, 1628, &why));
	assert_string_equal(why.field, "position");
	assert_non_null(strstr(why.text, "1628"));
	assert_non_null(strstr(why.text, "1627"));
	assert_int_equal(f.next, 1627);
	cursor_free(&c);
	cursor_free(&f);
}

static void seeking_past_a_pending_mix(void **state)
{
	struct cursor c = begin();
	struct fault why;

	(void)state;
	assert_true(cursor_mix(&c, 2048, (double[]){.5, .3, .2}, &why));
	struct order_place before = at(&c, 2047), after = at(&c, 2048), later = at(&c, 5000);

	assert_true(same_place(before, (struct order_place){1, 0, 4}));
	assert_true(same_place(after, (struct order_place){1, 1, 277}));
	assert_true(cursor_seek(&c, 2047, &why));
	assert_int_equal(c.segments, 2);
	assert_true(cursor_seek(&c, 5000, &why));
	assert_int_equal(c.segments, 1);
	assert_int_equal(c.segment[0]->start, 2048);
	assert_true(same_place(later, at(&c, 5000)));
	assert_true(cursor_seek(&c, 2048, &why)); /* back to where it began, not before */
	assert_true(same_place(after, at(&c, 2048)));
	assert_false(cursor_seek(&c, 2047, &why));
	assert_string_equal(why.field, "position");
	assert_non_null(strstr(why.text, "2048"));
	assert_int_equal(c.next, 2048);
	cursor_free(&c);
}

static void where_a_mix_acts(void **state)
{
	static const uint64_t next[] = {0, 1, 1023, 1024, 1025, 2048},
			      acts[] = {1024, 1024, 1024, 1024, 2048, 2048};
	struct cursor c = begin();
	struct fault why;

	(void)state;
	for (size_t i = 0; i < COUNT(next); i++) {
		assert_true(cursor_seek(&c, next[i], &why));
		assert_int_equal(cursor_mix_at(&c), acts[i]);
	}
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &why));
	assert_int_equal(cursor_mix_at(&c), 3072); /* strictly ahead of the current one's start */
	assert_true(cursor_seek(&c, UINT64_MAX - 1023, &why));
	assert_int_equal(cursor_mix_at(&c), UINT64_MAX - 1023);
	assert_true(cursor_seek(&c, UINT64_MAX - 1022, &why));
	assert_false(cursor_mix(
		&c, cursor_mix_at(&c), (double[]){1, 1, 1}, &why)); /* no block is left */
	cursor_free(&c);
}

static void mixing_leaves_what_was_served(void **state)
{
	struct cursor c = begin(), plain = begin();
	struct fault why;

	(void)state;
	assert_true(cursor_seek(&c, 1500, &why));
	assert_true(cursor_mix(&c, 2048, (double[]){0, 0, 1}, &why));
	for (uint64_t p = 0; p < 2048; p++)
		assert_true(same_place(at(&c, p), at(&plain, p)));
	for (uint64_t p = 2048; p < 4096; p++)
		assert_int_equal(at(&c, p).dataset, 2);
	cursor_free(&c);
	cursor_free(&plain);
}

static void mix_refused(
	uint64_t next, uint64_t where, const double *weights, const char *field, const char *text)
{
	struct cursor c = begin(), before;
	struct fault why;

	assert_true(cursor_seek(&c, next, &why));
	assert_true(cursor_copy(&before, &c));
	bool ok = cursor_mix(&c, where, weights, &why);

	assert_true(equal_bytes(&c, &before)); /* as it was */
	cursor_free(&before);
	assert_refused(&c, ok, &why, field, text);
}

static void mixes_refused(void **state)
{
	static const double fine[] = {1, 1, 1};

	(void)state;
	mix_refused(0, 1024, (double[]){1, NAN, 1}, "dataset code: weight", "finite");
	mix_refused(0, 1024, (double[]){1, 1, -1}, "dataset math: weight", "-1");
	mix_refused(0, 1024, (double[]){INFINITY, 1, 1}, "dataset web: weight", "finite");
	mix_refused(0, 1024, (double[]){1, 1e-12, 1}, "dataset code: weight", "small");
	mix_refused(0, 1024, (double[]){0, 0, 0}, "weights", "sum");
	mix_refused(0, 0, fine, "position", "1024");
	mix_refused(5000, 4096, fine, "position", "5120");
	mix_refused(0, 1000, fine, "position", "take 1024");
	mix_refused(0, 1025, fine, "position", "take 2048");
	mix_refused(5000, 4099, fine, "position", "take 5120");
	mix_refused(5000, 100001, fine, "position", "take 100352");
}

static void finite_streams_have_no_mix(void **state)
{
	struct cursor c = begin_as(1, 0);
	struct fault why;

	(void)state;
	bool ok = cursor_mix(&c, 1024, (double[]){1, 1, 1}, &why);

	assert_refused(&c, ok, &why, "mix", "epochs");
	c = begin_as(1, 0);
	ok = cursor_add(&c, &late, &why);
	assert_refused(&c, ok, &why, "add", "epochs");
}

static void an_empty_dataset_gets_no_weight(void **state)
{
	struct cursor_source empty = late;
	struct cursor c = begin();
	struct fault why;

	(void)state;
	empty.windows = 0;
	assert_true(cursor_add(&c, &empty, &why));
	bool ok = cursor_mix(&c, 1024, (double[]){1, 1, 1, 1}, &why);

	assert_refused(&c, ok, &why, "dataset late: weight", "without a single window");
}

static void adding(void **state)
{
	struct cursor c = begin(), plain = begin();
	struct fault why;

	(void)state;
	assert_true(cursor_add(&c, &late, &why));
	assert_int_equal(c.datasets, 4);
	assert_int_equal(cursor_find(&c, "late"), 3);
	for (uint64_t p = 0; p < 5000; p += 3)
		assert_true(same_place(at(&c, p), at(&plain, p)));
	assert_true(cursor_mix(&c, 1024, (double[]){0, 0, 0, 1}, &why));
	assert_int_equal(at(&c, 1024).dataset, 3);
	bool ok = cursor_add(&c, &late, &why);

	assert_int_equal(c.datasets, 4);
	assert_refused(&c, ok, &why, "dataset late: name", "already");
	cursor_free(&plain);
}

/* With a mix pending, the newcomer waits for the next one. */
static void adding_behind_a_pending_mix(void **state)
{
	struct cursor c = begin(), back;
	struct fault why;

	(void)state;
	assert_true(cursor_mix(&c, 1024, (double[]){1, 2, 3}, &why));
	struct order_place later = at(&c, 4000);

	assert_true(cursor_add(&c, &late, &why));
	assert_true(same_place(later, at(&c, 4000)));
	struct bytes *b = encode(&c);

	assert_true(decode(&back, b->at, b->n, &why));
	assert_true(same_place(later, at(&back, 4000)));
	assert_true(cursor_seek(&c, 1024, &why));
	assert_true(cursor_mix(&c, 2048, (double[]){0, 0, 0, 1}, &why));
	assert_int_equal(at(&c, 2048).dataset, 3);
	free(b);
	cursor_free(&c);
	cursor_free(&back);
}

/* ---- comparing ---- */

static void check_foreign(const struct cursor *mine, const struct cursor *now, const char *field)
{
	struct fault why;

	assert_false(cursor_belongs(mine, now, &why));
	assert_string_equal(why.field, field);
	assert_true(why.text[0]);
}

static void other_streams_are_named(void **state)
{
	struct cursor c = begin(), now;

	(void)state;
#define DIFFERS(change, name)                                                                      \
	(now = begin(), now.change, check_foreign(&c, &now, name), cursor_free(&now))
	DIFFERS(stream[0] = 'b', "stream");
	DIFFERS(seed++, "seed");
	DIFFERS(seq_len++, "seq_len");
	DIFFERS(extra++, "extra");
	DIFFERS(stride++, "stride");
	DIFFERS(epochs++, "epochs");
	DIFFERS(samples++, "samples");
	DIFFERS(order[1].windows++, "dataset code: windows");
	DIFFERS(dataset[1].digest++, "dataset code: digest of its shards");
	DIFFERS(order[1].shuffle = ORDER_GLOBAL, "dataset code: shuffle");
	DIFFERS(order[1].block++, "dataset code: block");
	DIFFERS(order[1].group++, "dataset code: group");
	DIFFERS(order[1].slide = true, "dataset code: slide");
	DIFFERS(dataset[1].name[0] = 'x', "dataset code: name"); /* whatever its hash */
#undef DIFFERS
	cursor_free(&c);
}

static void what_may_differ(void **state)
{
	struct cursor c = begin(), now = begin(), turned;
	struct cursor id = identity(0, 0);
	struct cursor_source sources[] = {three[2], three[0], three[1]};
	struct fault why;

	(void)state;
	now.order[0].block++; /* means nothing to a global shuffle */
	assert_true(cursor_add(&now, &late, &why));
	assert_true(cursor_belongs(&c, &now, &why));
	assert_true(cursor_belongs(&now, &c, &why)); /* what has no weight need not be there */
	sources[0].weight = 3; /* weights and order of the list are no identity */
	assert_true(cursor_begin(&turned, &id, sources, 3, NULL, 0, &why));
	assert_true(cursor_belongs(&c, &turned, &why));
	turned.dataset[1].max_epochs =
		5; /* nor are limits: a config may change them in the middle of a run */
	assert_true(cursor_belongs(&c, &turned, &why));
	assert_true(cursor_belongs(&turned, &c, &why));
	cursor_free(&turned);
	cursor_free(&now);
	cursor_free(&c);
}

/* A dataset that the config dropped: fine once its weight is 0, refused while it is served or will
 * be. */
static void a_dropped_dataset(void **state)
{
	struct cursor c = begin(), now;
	struct cursor id = identity(0, 0);
	struct fault why;

	(void)state;
	assert_true(cursor_begin(&now, &id, three, 2, NULL, 0, &why));
	check_foreign(&c, &now, "dataset math: name");
	assert_true(cursor_mix(&c, 1024, (double[]){1, 1, 0}, &why));
	check_foreign(&c, &now, "dataset math: name");
	assert_true(cursor_seek(&c, 1024, &why));
	assert_true(cursor_belongs(&c, &now, &why));
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &why));
	check_foreign(&c, &now, "dataset math: name");
	cursor_free(&now);
	cursor_free(&c);
}

static void finite_streams_keep_their_datasets(void **state)
{
	struct cursor c = begin_as(1, 0), now;
	struct cursor id = identity(1, 0);
	struct cursor_source four[] = {three[0], three[1], three[2], late};
	struct fault why;

	(void)state;
	assert_true(cursor_begin(&now, &id, four, 4, NULL, 0, &why));
	check_foreign(&c, &now, "datasets");
	cursor_free(&now);
	cursor_free(&c);
}

static void fingerprints_differ(void **state)
{
	struct cursor c = begin(), other;
	struct fault why;
	uint64_t seen[40] = {cursor_fingerprint(&c, 2, 8)};
	unsigned n = 1;

	(void)state;
	seen[n++] = cursor_fingerprint(&c, 3, 8);
	seen[n++] = cursor_fingerprint(&c, 2, 9);
	seen[n++] = cursor_fingerprint(&c, 8, 2);
#define WITH(change)                                                                               \
	(other = begin(), (void)(change), seen[n++] = cursor_fingerprint(&other, 2, 8),            \
		cursor_free(&other))
	WITH(other.stream[0] = 'b');
	WITH(other.seed++);
	WITH(other.seq_len++);
	WITH(other.extra++);
	WITH(other.stride++);
	WITH(other.epochs++);
	WITH(other.samples++);
	WITH(other.next++);
	WITH(other.order[2].name_hash++);
	WITH(other.order[2].windows++);
	WITH(other.order[2].shuffle++);
	WITH(other.order[2].block++);
	WITH(other.order[2].group++);
	WITH(other.order[2].slide = false);
	WITH(other.dataset[2].digest++);
	WITH(other.dataset[2].max_epochs++);
	WITH(other.dataset[1].max_epochs++);
	WITH(other.dataset[1].max_epochs = 2);
	WITH(other.segment[0]->units[1]++);
	WITH(other.segment[0]->base[1]++);
	WITH(other.segment[0]->phase[1]++);
	WITH(other.segment[0]->start++);
	WITH(cursor_mix(&other, 1024, (double[]){1, 1, 1}, &why));
	WITH(cursor_mix(&other, 2048, (double[]){1, 1, 1}, &why));
	WITH(cursor_add(&other, &late, &why));
#undef WITH
	assert_true(n <= COUNT(seen));
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < a; b++)
			assert_true(seen[a] != seen[b]);
	cursor_free(&c);
}

/* ---- size ---- */

static struct cursor_source *many(unsigned n, int name_bytes, char (*names)[LIMIT_NAME_BYTES + 1])
{
	struct cursor_source *sources = calloc(n, sizeof(*sources));

	assert_non_null(sources);
	for (unsigned d = 0; d < n; d++) {
		char digits[16];
		int length = snprintf(digits, sizeof(digits), "%u", d);

		memset(names[d], '0', (size_t)name_bytes);
		memcpy(names[d] + name_bytes - length, digits, (size_t)length + 1);
		sources[d] = (struct cursor_source){names[d], 1 + d % 7, UINT64_MAX - d,
			UINT64_MAX - d, UINT32_C(1) << 31, UINT32_C(1) << 31, ORDER_BLOCK, true, 0};
	}
	return sources;
}

/* The largest values everywhere, two mixes on. */
static void check_largest(const struct cursor_source *sources, unsigned n)
{
	struct cursor id = identity(0, 0), c, back;
	struct fault why;
	double weights[LIMIT_DATASETS];

	memset(id.stream, 's', LIMIT_NAME_BYTES);
	id.seed = UINT64_MAX;
	assert_true(cursor_begin(&c, &id, sources, n, NULL, 0, &why));
	for (unsigned turn = 0; turn < 2; turn++) {
		for (unsigned d = 0; d < n; d++)
			weights[d] = 1 + (d + turn) % 5;
		assert_true(cursor_seek(&c, (UINT64_MAX >> 1) + turn * (UINT64_C(1) << 40), &why));
		assert_true(cursor_mix(&c, cursor_mix_at(&c) + 1024, weights, &why));
	}
	struct bytes *b = encode(&c);

	assert_int_equal(c.segments, 2);
	assert_true(decode(&back, b->at, b->n, &why));
	assert_true(equal_bytes(&c, &back));
	free(b);
	cursor_free(&back);
	cursor_free(&c);
}

static void a_thousand_datasets_fit(void **state)
{
	char(*names)[LIMIT_NAME_BYTES + 1] = calloc(LIMIT_DATASETS, sizeof(*names));
	struct cursor_source *sources = many(1000, 24, names);

	(void)state;
	check_largest(sources, 1000);
	free(sources);
	free(names);
}

/* What cursor_begin() accepts can always be encoded; where it would not, it says so at once. */
static void the_bound_holds(void **state)
{
	char(*names)[LIMIT_NAME_BYTES + 1] = calloc(LIMIT_DATASETS, sizeof(*names));
	struct cursor id = identity(0, 0), c;
	struct fault why;
	unsigned fits = 0, refused = 0;

	(void)state;
	for (int name_bytes = 24; name_bytes <= LIMIT_NAME_BYTES; name_bytes += 5)
		for (unsigned n = 600; n <= LIMIT_DATASETS; n += 106) {
			struct cursor_source *sources = many(n, name_bytes, names);
			bool ok = cursor_begin(&c, &id, sources, n, NULL, 0, &why);

			cursor_free(&c);
			fits += ok;
			refused += !ok;
			if (ok)
				check_largest(sources, n);
			else
				assert_string_equal(why.field, "datasets");
			free(sources);
		}
	assert_true(fits > 5 && refused > 5);
	free(names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(begins),
		cmocka_unit_test(epochs_are_those_of_the_text),
		cmocka_unit_test(begin_refuses_a_dataset),
		cmocka_unit_test(begin_refuses_an_identity),
		cmocka_unit_test(begin_refuses_no_weight_at_all),
		cmocka_unit_test(begin_allows_an_empty_dataset),
		cmocka_unit_test(round_trip),
		cmocka_unit_test(version_1_is_unchanged),
		cmocka_unit_test(shapes_differ),
		cmocka_unit_test(equal_cursors_have_equal_bytes),
		cmocka_unit_test(encoding_never_passes_the_end),
		cmocka_unit_test(every_flipped_bit_is_refused),
		cmocka_unit_test(truncation_is_refused_at_every_byte),
		cmocka_unit_test(newer_versions_are_refused),
		cmocka_unit_test(a_newer_order_is_refused),
		cmocka_unit_test(tampered_values_are_refused),
		cmocka_unit_test(another_file_is_refused),
		cmocka_unit_test(mutations_with_a_good_checksum),
		cmocka_unit_test(every_byte_of_version_2),
		cmocka_unit_test(version_2_refuses),
		cmocka_unit_test(skipping),
		cmocka_unit_test(rewinding),
		cmocka_unit_test(sources_of_another_cursor),
		cmocka_unit_test(seeking),
		cmocka_unit_test(seeking_past_a_pending_mix),
		cmocka_unit_test(where_a_mix_acts),
		cmocka_unit_test(mixing_leaves_what_was_served),
		cmocka_unit_test(mixes_refused),
		cmocka_unit_test(finite_streams_have_no_mix),
		cmocka_unit_test(an_empty_dataset_gets_no_weight),
		cmocka_unit_test(adding),
		cmocka_unit_test(adding_behind_a_pending_mix),
		cmocka_unit_test(other_streams_are_named),
		cmocka_unit_test(what_may_differ),
		cmocka_unit_test(a_dropped_dataset),
		cmocka_unit_test(finite_streams_keep_their_datasets),
		cmocka_unit_test(fingerprints_differ),
		cmocka_unit_test(a_thousand_datasets_fit),
		cmocka_unit_test(the_bound_holds),
	};

	return cmocka_run_group_tests_name("cursor", tests, NULL, NULL);
}
