/* Comparing cursors with their stream and with those of other ranks; and the bound on their
 * size. */
#include "proto/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cursors.h"

/* ---- comparing ---- */

static void check_foreign(const struct cursor *mine, const struct cursor *now, const char *field)
{
	struct fault fault;

	assert_false(cursor_belongs(mine, now, &fault));
	assert_string_equal(fault.field, field);
	assert_true(fault.text[0]);
}

static void the_difference_to_another_stream_is_named(void **state)
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
	DIFFERS(dataset[1].digest++, "dataset code: shards");
	DIFFERS(order[1].shuffle = ORDER_GLOBAL, "dataset code: shuffle");
	DIFFERS(order[1].block++, "dataset code: block");
	DIFFERS(order[1].group++, "dataset code: group");
	DIFFERS(order[1].slide = true, "dataset code: slide");
	DIFFERS(dataset[1].lo++, "dataset code: part");
	DIFFERS(dataset[1].name[0] = 'x', "dataset code: name"); /* compared by name, not by hash */
#undef DIFFERS
	cursor_free(&c);
}

static void a_stream_may_have_more_datasets_and_other_weights(void **state)
{
	struct cursor c = begin(), now = begin(), turned;
	struct cursor id = identity(0, 0);
	struct cursor_source sources[] = {three[2], three[0], three[1]};
	struct fault fault;

	(void)state;
	now.order[0].block++; /* without effect on a global shuffle */
	assert_true(cursor_add(&now, &late, &fault));
	assert_true(cursor_belongs(&c, &now, &fault));
	assert_true(cursor_belongs(&now, &c, &fault)); /* a dataset without weight may be absent */
	sources[0].weight = 3; /* weights and the order of the list do not matter */
	assert_true(cursor_begin(&turned, &id, sources, 3, NULL, 0, &fault));
	assert_true(cursor_belongs(&c, &turned, &fault));
	turned.dataset[1].max_epochs =
		5; /* limits do not matter either: the config may change them during a run */
	assert_true(cursor_belongs(&c, &turned, &fault));
	assert_true(cursor_belongs(&turned, &c, &fault));
	cursor_free(&turned);
	cursor_free(&now);
	cursor_free(&c);
}

/* A dataset that the config dropped is fine once its weight is 0, and an error while it is served
 * now or later. */
static void a_dataset_may_be_dropped_when_it_is_not_served(void **state)
{
	struct cursor c = begin(), now;
	struct cursor id = identity(0, 0);
	struct fault fault;

	(void)state;
	assert_true(cursor_begin(&now, &id, three, 2, NULL, 0, &fault));
	check_foreign(&c, &now, "dataset math: name");
	assert_true(cursor_mix(&c, 1024, (double[]){1, 1, 0}, &fault));
	check_foreign(&c, &now, "dataset math: name");
	assert_true(cursor_seek(&c, 1024, &fault));
	assert_true(cursor_belongs(&c, &now, &fault));
	assert_true(cursor_mix(&c, 2048, (double[]){1, 1, 1}, &fault));
	check_foreign(&c, &now, "dataset math: name");
	cursor_free(&now);
	cursor_free(&c);
}

static void finite_streams_keep_their_datasets(void **state)
{
	struct cursor c = begin_as(1, 0), now;
	struct cursor id = identity(1, 0);
	struct cursor_source four[] = {three[0], three[1], three[2], late};
	struct fault fault;

	(void)state;
	assert_true(cursor_begin(&now, &id, four, 4, NULL, 0, &fault));
	check_foreign(&c, &now, "datasets");
	cursor_free(&now);
	cursor_free(&c);
}

static void fingerprints_differ(void **state)
{
	struct cursor c = begin(), other;
	struct fault fault;
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
	WITH(cursor_mix(&other, 1024, (double[]){1, 1, 1}, &fault));
	WITH(cursor_mix(&other, 2048, (double[]){1, 1, 1}, &fault));
	WITH(cursor_add(&other, &late, &fault));
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
			UINT64_MAX - d, UINT32_C(1) << 31, UINT32_C(1) << 31, ORDER_BLOCK, true, 0,
			UINT32_MAX, ORDER_UNITS};
	}
	return sources;
}

/* A cursor with the largest values everywhere, and with two mixes. */
static void check_largest(const struct cursor_source *sources, unsigned n)
{
	struct cursor id = identity(0, 0), c, back;
	struct fault fault;
	double weights[LIMIT_DATASETS];

	memset(id.stream, 's', LIMIT_NAME_BYTES);
	id.seed = UINT64_MAX;
	assert_true(cursor_begin(&c, &id, sources, n, NULL, 0, &fault));
	for (unsigned turn = 0; turn < 2; turn++) {
		for (unsigned d = 0; d < n; d++)
			weights[d] = 1 + (d + turn) % 5;
		assert_true(
			cursor_seek(&c, (UINT64_MAX >> 1) + turn * (UINT64_C(1) << 40), &fault));
		assert_true(cursor_mix(&c, cursor_mix_at(&c) + 1024, weights, &fault));
	}
	struct bytes *b = encode(&c);

	assert_int_equal(c.segments, 2);
	assert_true(decode(&back, b->at, b->n, &fault));
	assert_true(equal_bytes(&c, &back));
	free(b);
	cursor_free(&back);
	cursor_free(&c);
}

/* Every cursor that cursor_begin() accepts can be encoded; for others it fails. */
static void accepted_cursors_fit_into_their_bound(void **state)
{
	char(*names)[LIMIT_NAME_BYTES + 1] = calloc(LIMIT_DATASETS, sizeof(*names));
	struct cursor id = identity(0, 0), c;
	struct fault fault;
	unsigned fits = 0, refused = 0;

	(void)state;
	for (int name_bytes = 24; name_bytes <= LIMIT_NAME_BYTES; name_bytes += 5)
		for (unsigned n = 600; n <= LIMIT_DATASETS; n += 106) {
			struct cursor_source *sources = many(n, name_bytes, names);
			bool ok = cursor_begin(&c, &id, sources, n, NULL, 0, &fault);

			cursor_free(&c);
			fits += ok;
			refused += !ok;
			if (ok)
				check_largest(sources, n);
			else
				assert_string_equal(fault.field, "datasets");
			free(sources);
		}
	assert_true(fits > 5 && refused > 5);
	free(names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_difference_to_another_stream_is_named),
		cmocka_unit_test(a_stream_may_have_more_datasets_and_other_weights),
		cmocka_unit_test(a_dataset_may_be_dropped_when_it_is_not_served),
		cmocka_unit_test(finite_streams_keep_their_datasets),
		cmocka_unit_test(fingerprints_differ),
		cmocka_unit_test(accepted_cursors_fit_into_their_bound),
	};

	return cmocka_run_group_tests_name("cursor compare", tests, NULL, NULL);
}
