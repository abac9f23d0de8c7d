/* Pieces of objects with sums: none is pinned that was not compared with its sum. */
#include "daemon/store/sums.h"
#include "tests/unit/cached.h"

static uint64_t sums[PIECES];

/* An object with the sums of its pieces. */
static struct object listed(unsigned i)
{
	static uint8_t body[PIECE];
	struct object object = object_of(i);

	for (uint64_t p = 0; p < PIECES; p++) {
		fill(body, i, p * PIECE, bytes_of(p));
		sums[p] = sums_piece(body, bytes_of(p));
	}
	object.sums = sums;
	return object;
}

/* Whether all pieces but @without are pinned in turn. */
static void assert_pinned(struct store_cache *cache, const struct object *object, uint64_t without)
{
	for (uint64_t p = 0; p < PIECES; p++) {
		int fd;
		bool pinned = pin_object(cache, *object, p * PIECE, bytes_of(p), &fd);

		assert_int_equal(pinned, p != without);
		if (pinned)
			store_cache_unpin(cache, fd, p * PIECE, bytes_of(p));
	}
}

static uint64_t mismatches(struct store_cache *cache)
{
	struct store_cache_status status = {0};

	store_cache_state(cache, &status);
	return status.mismatches;
}

/*
 * Pieces that were written without a comparison, by this daemon or an earlier one, are compared
 * when an object with sums needs them.
 */
static void test_pieces_are_compared_before_they_are_pinned(void **state)
{
	struct object object = listed(1);

	(void)state;
	for (int restart = 0; restart < 2; restart++) {
		struct store_cache *cache = open_cache(ROOM * PIECE);

		for (uint64_t p = 0; p < PIECES; p++)
			assert_true(put(cache, 1, p, UINT64_MAX));
		if (restart) {
			store_cache_close(cache);
			cache = open_cache(ROOM * PIECE);
		} else {
			assert_true(get_piece(cache, 1, 3)); /* which needs no comparison */
		}
		sums[3] ^= 1;
		assert_pinned(cache, &object, 3);
		assert_int_equal(mismatches(cache), 1);
		assert_false(get_piece(cache, 1, 3)); /* it was dropped */
		sums[3] ^= 1;
		assert_true(put(cache, 1, 3, UINT64_MAX));
		assert_pinned(cache, &object, PIECES);
		sums[3] ^= 1; /* compared once */
		assert_pinned(cache, &object, PIECES);
		sums[3] ^= 1;
		store_cache_close(cache);
		clear();
	}
}

/* A piece that is read is not dropped under its reader. */
static void test_a_pinned_piece_that_differs_stays(void **state)
{
	struct store_cache *cache = open_cache(ROOM * PIECE);
	struct object object = listed(2);
	uint64_t piece;
	int fd, pinned;

	(void)state;
	assert_true(put(cache, 2, 0, UINT64_MAX));
	sums[0] ^= 1;
	assert_true(pin(cache, 2, 0, PIECE, &pinned));
	store_cache_verify(cache, &place, &object, 0, sums[0]);
	assert_int_equal(
		store_cache_pin(cache, &place, &object, 0, PIECE, &fd, &piece), CACHE_UNVERIFIED);
	store_cache_unpin(cache, pinned, 0, PIECE);
	assert_false(pin_object(cache, object, 0, PIECE, &fd));
	store_cache_close(cache);
}

static void test_a_write_is_compared(void **state)
{
	static uint8_t body[PIECE];
	struct store_cache *cache = open_cache(ROOM * PIECE);
	struct object object = listed(0);
	uint64_t piece;
	int fd;

	(void)state;
	fill(body, 0, 0, PIECE);
	for (unsigned wrong = 0; wrong < 2; wrong++) {
		struct cache_write *w =
			store_cache_write(cache, &place, &object, wrong, UINT64_MAX);

		assert_non_null(w);
		fill(body, 0, wrong * PIECE, PIECE);
		body[100] ^= (uint8_t)(wrong << 3);
		assert_true(store_cache_append(w, body, PIECE));
		assert_int_equal(store_cache_compare(w, sums[wrong]), !wrong);
		assert_int_equal(store_cache_end(w, !wrong), !wrong);
	}
	/* Compared already: without verification. */
	assert_int_equal(
		store_cache_pin(cache, &place, &object, 0, PIECE, &fd, &piece), CACHE_PINNED);
	store_cache_unpin(cache, fd, 0, PIECE);
	assert_int_equal(
		store_cache_pin(cache, &place, &object, PIECE, PIECE, &fd, &piece), CACHE_ABSENT);
	store_cache_close(cache);
}

static int begin(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	rng.state = 1;
	snprintf(root, sizeof(root), "%s/cache", tmp ? tmp : "/tmp");
	clear();
	return 0;
}

static int end(void **state)
{
	(void)state;
	clear();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_pieces_are_compared_before_they_are_pinned, begin, end),
		cmocka_unit_test_setup_teardown(test_a_pinned_piece_that_differs_stays, begin, end),
		cmocka_unit_test_setup_teardown(test_a_write_is_compared, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
