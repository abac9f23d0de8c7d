/* The bytes of cursors: canonical, readable forever, and every decoded cursor is valid. */
#include "proto/cursor.h"
#include "proto/pack.h"
#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

/* Cursors of every shape: plain, finite, moved, mixed, pending, with more datasets. */
static unsigned shapes(struct cursor *c)
{
	struct fault fault;
	unsigned n = 0;

	c[n++] = begin();
	c[n++] = begin_as(3, 0);
	c[n++] = begin_as(0, 1 << 20);
	c[n] = begin();
	assert_true(cursor_seek(&c[n++], UINT64_C(1) << 62, &fault));
	c[n] = begin();
	assert_true(cursor_seek(&c[n], 1000, &fault));
	assert_true(cursor_mix(&c[n++], 2048, (double[]){.5, .3, .2}, &fault));
	c[n] = begin();
	assert_true(cursor_mix(&c[n], 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(cursor_seek(&c[n++], 3000, &fault));
	c[n] = begin();
	assert_true(cursor_add(&c[n++], &late, &fault));
	c[n] = begin();
	assert_true(cursor_add(&c[n], &late, &fault));
	assert_true(cursor_mix(&c[n++], 1024, (double[]){.5, 0, .2, 7}, &fault));
	c[n++] = begin_limited(0);
	c[n++] = begin_limited(5000);
	c[n++] = begin_parted(0);
	c[n++] = begin_parted(3);
	c[n] = begin_limited(0);
	assert_true(cursor_seek(&c[n++], 200000, &fault)); /* with limits, none pending */
	c[n] = begin();
	assert_true(cursor_schedule(&c[n++], NULL,
		(const struct cursor_step[]){{2048, 2048, 1, (double[]){1, 2, 3}},
			{4096, 8192, 3, (double[]){0, 1, 0}},
			{10240, 10240, 1, (double[]){3, 0, 1}}},
		3, NULL, &fault));
	return n;
}

/* Bytes of an older tokend keep their meaning forever, and are still written if they suffice. */
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
	struct fault fault;
	struct bytes *b;
	uint8_t old[sizeof(version_1) / 2];

	(void)state;
	for (size_t i = 0; i < sizeof(old); i++)
		assert_int_equal(sscanf(version_1 + 2 * i, "%2hhx", &old[i]), 1);
	assert_true(cursor_seek(&c, 3000, &fault));
	assert_true(cursor_mix(&c, 4096, (double[]){.5, .3, .2}, &fault));
	b = encode(&c);
	assert_int_equal(b->n, sizeof(old));
	assert_memory_equal(b->at, old, sizeof(old));
	assert_true(decode(&back, old, sizeof(old), &fault));
	assert_int_equal(cursor_fingerprint(&back, 2, 8), UINT64_C(0x82dd636840d1c351));
	cursor_free(&back);
	free(b);
	/* Only cursors that need version 2 have it. */
	assert_true(cursor_schedule(&c, NULL,
		(const struct cursor_step[]){{4096, 4096, 1, (double[]){.5, .3, .2}},
			{5120, 5120, 1, (double[]){1, 1, 1}}},
		2, NULL, &fault));
	b = encode(&c);
	assert_int_equal(b->at[4], 2);
	free(b);
	assert_true(cursor_seek(&c, 4096, &fault));
	b = encode(&c);
	assert_int_equal(b->at[4], 1);
	free(b);
	cursor_free(&c);
}

static void cursors_survive_the_round_trip(void **state)
{
	struct cursor c[16], back;
	struct fault fault;
	unsigned n = shapes(c);

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		assert_true(decode(&back, b->at, b->n, &fault));
		assert_true(equal_bytes(&c[i], &back));
		assert_int_equal(cursor_fingerprint(&c[i], 2, 3), cursor_fingerprint(&back, 2, 3));
		assert_true(cursor_belongs(&back, &c[i], &fault));
		for (uint64_t p = c[i].next; p < c[i].next + 3000 && p < cursor_end(&c[i]); p += 7)
			assert_true(same_place(at(&c[i], p), at(&back, p)));
		cursor_free(&back);
		cursor_free(&c[i]);
		free(b);
	}
}

static void cursors_of_different_shape_have_different_bytes(void **state)
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

/* Equal cursors have equal bytes, however they were made. */
static void equal_cursors_have_equal_bytes(void **state)
{
	struct cursor a = begin(), b = begin(), copy;
	struct fault fault;

	(void)state;
	assert_true(cursor_mix(&a, 4096, (double[]){1, 1, 1}, &fault));
	assert_true(cursor_mix(&a, 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &fault));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 2047, &fault));
	assert_false(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 0, &fault));
	assert_true(equal_bytes(&a, &b));
	assert_true(cursor_seek(&a, 2048,
		&fault)); /* there the mix is the current one, as if it had just been made */
	cursor_free(&b);
	b = begin();
	assert_true(cursor_seek(&b, 2048, &fault));
	assert_true(cursor_mix(&b, 2048, (double[]){.5, .3, .2}, &fault));
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
	struct fault fault;
	unsigned n = shapes(c);

	(void)state;
	for (unsigned i = 0; i < n; i++) {
		struct bytes *b = encode(&c[i]);

		for (size_t bit = 0; bit < 8 * b->n; bit++) {
			b->at[bit / 8] ^= 1 << bit % 8;
			assert_false(decode(&out, b->at, b->n, &fault));
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
	struct fault fault;
	struct bytes *b = encode(&c);

	(void)state;
	for (size_t n = 0; n < b->n; n++) {
		assert_false(decode(&out, b->at, n, &fault));
		cursor_free(&out);
	}
	b->at[b->n] = 0;
	bool ok = decode(&out, b->at, b->n + 1, &fault);

	assert_refused(&out, ok, &fault, "checksum", "damaged");
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
	struct fault fault;
	struct bytes *b = encode(&c);
	bool ok;

	(void)state;
	put_le(b->at + 4, CURSOR_VERSION + 1, 4);
	ok = decode(&out, b->at, b->n, &fault);
	assert_refused(&out, ok, &fault, "version", "newer");
	put_le(b->at + 4, UINT32_MAX, 4);
	ok = decode(&out, b->at, HEADER, &fault); /* a newer version may have any length */
	assert_refused(&out, ok, &fault, "version", "newer");
	put_le(b->at + 4, 0, 4);
	ok = decode(&out, b->at, b->n, &fault);
	assert_refused(&out, ok, &fault, "version", "");
	free(b);
	cursor_free(&c);
}

/* The byte after @key in the encoded map. */
static uint8_t *small_number(struct bytes *b, const char *key)
{
	uint8_t *found = memmem(b->at, b->n, key, strlen(key));

	assert_non_null(found);
	return found + strlen(key);
}

static void a_newer_order_is_refused(void **state)
{
	struct cursor c = begin(), out;
	struct fault fault;
	struct bytes *b = encode(&c);

	(void)state;
	assert_int_equal(*small_number(b, "\xa5order"), ORDER_VERSION);
	*small_number(b, "\xa5order") = ORDER_VERSION + 1;
	seal(b);
	bool ok = decode(&out, b->at, b->n, &fault);

	assert_refused(&out, ok, &fault, "order", "newer");
	free(b);
	cursor_free(&c);
}

static void tampered_values_are_refused(void **state)
{
	static const char *const keys[] = {"\xa7seq_len", "\xa6stride", "\xa4next"};
	static const uint8_t values[] = {0, 0, 0xc0};
	struct cursor c = begin(), out;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(keys); i++) {
		struct bytes *b = encode(&c);

		*small_number(b, keys[i]) = values[i];
		seal(b);
		bool ok = decode(&out, b->at, b->n, &fault);

		assert_refused(&out, ok, &fault, keys[i] + 1, "");
		free(b);
	}
	cursor_free(&c);
}

/* Entries of `parts`: the windows of the path, from and to. */
static void parts_without_their_windows_are_refused(void **state)
{
	static const char *const of[] = {"\xcd\x04\xe1", "\xcd\x01\x4c"};
	struct cursor c = begin_parted(0), out;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(of); i++)
		for (int bit = 0; bit < 8; bit++) {
			struct bytes *b = encode(&c);
			uint8_t *parts = memmem(b->at, b->n, "\xa5parts", 6);

			assert_int_equal(b->at[4], 3);
			parts = memmem(parts, (size_t)(b->at + b->n - parts), of[i], 3);
			parts[1] ^= (uint8_t)(1 << bit);
			seal(b);
			bool ok = decode(&out, b->at, b->n, &fault);

			assert_refused(&out, ok, &fault, "parts", "");
			free(b);
		}
	cursor_free(&c);
}

/* Otherwise the cursor would have other bytes when it is encoded again. */
static void names_with_a_nul_are_refused(void **state)
{
	static const char *const names[] = {"train", "code"}, *const fields[] = {
								      "stream", "datasets"};
	struct cursor c = begin(), out;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(names); i++) {
		struct bytes *b = encode(&c);

		*(small_number(b, names[i]) - 1) = 0;
		seal(b);
		bool ok = decode(&out, b->at, b->n, &fault);

		assert_refused(&out, ok, &fault, fields[i], "");
		free(b);
	}
	cursor_free(&c);
}

static void bytes_that_are_not_a_cursor_are_refused(void **state)
{
	struct cursor out;
	struct fault fault;
	char zeros[4096] = {0};
	bool ok;

	(void)state;
	ok = decode(&out, "", 0, &fault);
	assert_refused(&out, ok, &fault, "cursor", "not a cursor");
	ok = decode(&out, "{\"position\": 0, \"stream\": \"train\"}", 34, &fault);
	assert_refused(&out, ok, &fault, "cursor", "not a cursor");
	ok = decode(&out, zeros, sizeof(zeros), &fault);
	assert_refused(&out, ok, &fault, "cursor", "not a cursor");
}

/* A decoded cursor is safe to use: no assert, division by 0 or overflow in the order. */
static void exercise(struct cursor *c, struct rng *rng)
{
	struct order o = cursor_order(c);
	struct fault fault;
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
			cursor_mix_at(c) + rng_below(rng, 4) * 1024, &fault);
	if (rng_below(rng, 2))
		cursor_schedule(c, NULL,
			&(struct cursor_step){
				c->next / 1024 * 1024, c->next / 1024 * 1024 + 8192, 4, weights},
			1, NULL, &fault);
	cursor_skip(c, rng_wide(rng), &fault);
	if (rng_below(rng, 2))
		cursor_mix(c, cursor_mix_at(c), weights, &fault);
	cursor_seek(c, rng_wide(rng), &fault);
	cursor_rewind(c, rng_wide(rng), &fault);
	cursor_fingerprint(c, 1, 1);
	assert_true(cursor_encode(c, bytes, sizeof(bytes)) > 0);
}

static void decoded_is_sound(const struct bytes *b, struct rng *rng, unsigned *accepted)
{
	struct cursor out, again;
	struct fault fault;

	if (decode(&out, b->at, b->n, &fault)) {
		struct bytes *canonical = encode(&out);

		assert_true(decode(&again, canonical->at, canonical->n, &fault));
		assert_true(equal_bytes(&out, &again));
		cursor_free(&again);
		free(canonical);
		exercise(&out, rng);
		++*accepted;
	}
	cursor_free(&out);
}

static void mutations_with_a_valid_checksum_are_safe(void **state)
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

/* Version 2 with every byte at its edges, one at a time: a valid cursor, or an error. */
static void version_2_with_any_byte_changed_is_valid_or_refused(void **state)
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

/* The map of @c with the value of @key replaced by @value. */
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

static void invalid_members_of_version_2_are_refused(void **state)
{
	struct cursor c = begin_limited(0), out;
	struct fault fault;
	struct bytes *b;
	bool ok;

	(void)state;
#define WITH(key, old, value, field)                                                               \
	(b = with_value(&c, key, old, value, sizeof(value) - 1),                                   \
		ok = decode(&out, b->at, b->n, &fault),                                            \
		assert_refused(&out, ok, &fault, field, ""), free(b))
	WITH("\xa6limits", 4, "\x92\x00\x02", "limits");	 /* of two datasets */
	WITH("\xa6limits", 4, "\x94\x00\x02\x03\x04", "limits"); /* of four */
	WITH("\xa6limits", 4, "\x93\x00\x02\xc0", "limits");	 /* nil */
	WITH("\xa6limits", 4, "\x93\x00\x02\xff", "limits");	 /* -1 */
	WITH("\xa6limits", 4, "\x00", "limits");		 /* not a list */
	WITH("\xa7pending", 1, "\x93", "cursor"); /* fewer pairs than announced: not MessagePack */
	WITH("\xa6"
	     "epochs",
		1, "\x01", "dataset code: max_epochs"); /* limits in a stream with epochs */
	cursor_free(&c);
	c = begin_limited(0);
	assert_true(cursor_seek(&c, 200000, &fault)); /* with an empty list */
	WITH("\xa7pending", 1, "\x91\x00", "pending");
	WITH("\xa7pending", 1, "\x92\x00\x00", "pending");
	WITH("\xa7pending", 1, "\x92\x00\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "pending");
	WITH("\xa7pending", 1,
		"\x92\xce\x00\x04\x00\x00\x93\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x01",
		"pending");
#define ALONE "\x93\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	WITH("\xa7pending", 1, "\x92\xce\x00\x02\x00\x00" ALONE, "pending"); /* not after next */
	WITH("\xa7pending", 1, "\x92\xce\x00\x04\x00\x01" ALONE, "pending"); /* not at a block */
	WITH("\xa7pending", 1, "\x94\xce\x00\x04\x00\x00" ALONE "\xce\x00\x04\x00\x00" ALONE,
		"pending");
	WITH("\xa7pending", 1, "\xc0", "pending");
#undef WITH
	/* A valid value is accepted, so the errors above are about the values. */
	b = with_value(
		&c, "\xa7pending", 1, "\x92\xce\x00\x04\x00\x00" ALONE, 6 + sizeof(ALONE) - 1);
#undef ALONE
	assert_true(decode(&out, b->at, b->n, &fault));
	assert_int_equal(out.segments, 2);
	assert_int_equal(out.segment[1]->start, 0x40000);
	cursor_free(&out);
	free(b);
	cursor_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cursors_survive_the_round_trip),
		cmocka_unit_test(version_1_is_unchanged),
		cmocka_unit_test(cursors_of_different_shape_have_different_bytes),
		cmocka_unit_test(equal_cursors_have_equal_bytes),
		cmocka_unit_test(encoding_never_passes_the_end),
		cmocka_unit_test(every_flipped_bit_is_refused),
		cmocka_unit_test(truncation_is_refused_at_every_byte),
		cmocka_unit_test(newer_versions_are_refused),
		cmocka_unit_test(a_newer_order_is_refused),
		cmocka_unit_test(tampered_values_are_refused),
		cmocka_unit_test(parts_without_their_windows_are_refused),
		cmocka_unit_test(names_with_a_nul_are_refused),
		cmocka_unit_test(bytes_that_are_not_a_cursor_are_refused),
		cmocka_unit_test(mutations_with_a_valid_checksum_are_safe),
		cmocka_unit_test(version_2_with_any_byte_changed_is_valid_or_refused),
		cmocka_unit_test(invalid_members_of_version_2_are_refused),
	};

	return cmocka_run_group_tests_name("cursor bytes", tests, NULL, NULL);
}
