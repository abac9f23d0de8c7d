/* The ring: its layout, and its words. tests/memory runs its protocol in two threads. */
#include "proto/ring.h"

#include "tests/unit/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define GIB	     LIMIT_CHUNK_BYTES

/* ---- geometry ---- */

static bool fits(
	struct ring_geometry *g, uint64_t slots, uint64_t rows, uint64_t window, uint64_t bytes)
{
	struct ring_geometry more;
	struct fault fault;
	bool ok = ring_geometry(g, slots, rows, window, bytes, 0, &fault);

	/* Documents need room in the meta memory, and have no other bound. */
	assert_int_equal(ring_geometry(&more, slots, rows, window, bytes, true, &fault), ok);
	if (ok) {
		assert_int_equal(more.data_bytes, g->data_bytes);
		assert_true(more.meta_bytes >=
			    g->meta_bytes - RING_PAGE + slots * rows * (1 + window) * 4);
		assert_true(more.meta_bytes <=
			    g->meta_bytes + RING_PAGE + slots * rows * (1 + window) * 4);
	}
	return ok;
}

/* Slots follow each other, aligned, none across a chunk; the control page comes after them. */
static void check_layout(const struct ring_geometry *g)
{
	uint64_t end = 0;

	for (uint64_t s = 0; s < g->slots; s++) {
		uint64_t at = ring_slot_offset(g, s);

		assert_true(at >= end && at % 64 == 0);
		end = at + g->slot_bytes;
		assert_int_equal(at / GIB, (end - 1) / GIB);
		assert_int_equal(ring_slot_offset(g, s + 3 * (uint64_t)g->slots), at);
	}
	assert_true(g->control_at >= end && g->control_at % RING_PAGE == 0);
	assert_int_equal(g->data_bytes, g->control_at + RING_PAGE);
	assert_true(g->meta_bytes % RING_PAGE == 0);
	assert_true(
		g->meta_bytes >= RING_PAGE + g->slots * (sizeof(struct ring_slot) +
								g->rows * sizeof(struct ring_row)));
}

static void slots_are_aligned_and_do_not_overlap(void **state)
{
	struct rng rng = {21};
	struct ring_geometry g;
	unsigned fine = 0;

	(void)state;
	for (unsigned i = 0; i < 3000; i++) {
		uint64_t slots = 1 + rng_below(&rng, i % 4 ? 40 : LIMIT_SLOTS),
			 rows = 1 + (rng_wide(&rng) & 0xffff);
		uint64_t window = 1 + (rng_wide(&rng) & (GIB - 1)),
			 bytes = 2 + 2 * rng_below(&rng, 2);

		if (!fits(&g, slots, rows, window, bytes))
			continue;
		fine++;
		assert_int_equal(g.slot_bytes, rows * window * bytes);
		check_layout(&g);
	}
	assert_true(fine > 300);
}

static void no_slot_crosses_a_gibibyte(void **state)
{
	struct ring_geometry g;

	(void)state;
	assert_true(fits(&g, 3, 1, GIB / 4, 4)); /* exactly 1 GiB: one per chunk */
	assert_int_equal(g.slot_bytes, GIB);
	assert_int_equal(ring_slot_offset(&g, 2), 2 * GIB);
	check_layout(&g);
	assert_true(fits(&g, 7, 1, GIB / 6, 4)); /* two thirds of a chunk: one per chunk */
	assert_int_equal(ring_slot_offset(&g, 1), GIB);
	check_layout(&g);
	assert_true(fits(&g, 4096, 1, GIB / 4, 4));
	check_layout(&g);
}

static void impossible_geometries_are_refused(void **state)
{
	static const struct {
		uint64_t slots, rows, window, bytes;
		const char *field, *text;
	} cases[] = {
		{2, 8, GIB / 32 + 1, 4, "micro_batch",
			"8 rows × 33554433 tokens × 4 bytes = 1073741856 bytes a slot; must "
			"be at most 1 GiB"},
		{2, LIMIT_MICRO_BATCH, GIB, 8, "micro_batch", "at most 1 GiB"},
		{LIMIT_SLOTS, 1025, 1, 2, "slots", "4096 slots × 1025 rows = 4198400 rows"},
		{0, 1, 1, 2, "slots", "0; must be 1 to 4096"},
		{LIMIT_SLOTS + 1, 1, 1, 2, "slots", "4097; must be 1 to 4096"},
		{1, 0, 1, 2, "micro_batch", "0"},
		{1, LIMIT_MICRO_BATCH + 1, 1, 2, "micro_batch", "65537"},
		{1, 1, 0, 2, "window", "0"},
		{1, 1, UINT64_MAX, 2, "window", "18446744073709551615"},
		{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, "slots", ""},
	};
	struct ring_geometry g;
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_false(ring_geometry(&g, cases[i].slots, cases[i].rows, cases[i].window,
			cases[i].bytes, 0, &fault));
		assert_int_equal(fault.code, FAULT_ATTACH);
		assert_string_equal(fault.field, cases[i].field);
		assert_non_null(strstr(fault.text, cases[i].text));
	}
}

/* ---- one map for both sides ---- */

struct maps {
	struct ring_geometry g;
	struct ring daemon, client;
	void *meta, *data;
};

static void *map(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

static void maps_make_with(
	struct maps *m, uint64_t slots, uint64_t rows, uint64_t window, unsigned annotations)
{
	struct fault fault;

	assert_true(ring_geometry(&m->g, slots, rows, window, 4, annotations, &fault));
	m->meta = map(m->g.meta_bytes);
	m->data = map(m->g.data_bytes);
	ring_format(&m->daemon, &m->g, m->meta, m->data);
	assert_true(
		ring_open(&m->client, m->meta, m->g.meta_bytes, m->data, m->g.data_bytes, &fault));
}

static void maps_make(struct maps *m, uint64_t slots, uint64_t rows, uint64_t window)
{
	maps_make_with(m, slots, rows, window, 0);
}

static void maps_free(struct maps *m)
{
	munmap(m->meta, m->g.meta_bytes);
	munmap(m->data, m->g.data_bytes);
}

/* Each row has its own room for annotations, between the rows and the end of the meta memory. */
static void annotations_have_a_place(unsigned annotations)
{
	enum { SLOTS = 3, ROWS_EACH = 5, TOKENS = 33, ROWS = SLOTS * ROWS_EACH };
	struct maps m;

	maps_make_with(&m, SLOTS, ROWS_EACH, TOKENS, annotations);
	uint8_t *at = (uint8_t *)(m.client.row + ROWS);

	if (annotations & RING_DOCUMENTS) {
		for (uint32_t i = 0; i < ROWS; i++, at += sizeof(uint32_t))
			assert_ptr_equal(ring_annotations(&m.client, i).count, at);
		for (uint32_t i = 0; i < ROWS; i++, at += TOKENS * sizeof(uint32_t))
			assert_ptr_equal(ring_annotations(&m.client, i).start, at);
	}
	for (uint32_t i = 0; annotations & RING_LOSS_MASK && i < ROWS; i++, at += TOKENS)
		assert_ptr_equal(ring_annotations(&m.client, i).loss_mask, at);
	assert_true(at <= (uint8_t *)m.meta + m.g.meta_bytes);
	for (uint32_t i = 0; i < ROWS; i++) {
		struct annotations daemon = ring_annotations(&m.daemon, i),
				   client = ring_annotations(&m.client, i);

		assert_memory_equal(&daemon, &client, sizeof(client));
		assert_true(!client.count == !(annotations & RING_DOCUMENTS) &&
			    !client.count == !client.start);
		assert_true(!client.loss_mask == !(annotations & RING_LOSS_MASK));
	}
	maps_free(&m);
}

static void requested_annotations_have_their_own_room(void **state)
{
	(void)state;
	for (unsigned annotations = 0; annotations < 4; annotations++)
		annotations_have_a_place(annotations);
}

static bool opens(const struct maps *m, uint64_t meta_bytes, uint64_t data_bytes)
{
	struct fault fault;
	struct ring ring;

	if (ring_open(&ring, m->meta, meta_bytes, m->data, data_bytes, &fault))
		return true;
	assert_int_equal(fault.code, FAULT_PROTOCOL);
	return false;
}

static void mangled_headers(unsigned annotations)
{
	struct maps m;

	maps_make_with(&m, 3, 128, 33,
		annotations); /* enough rows that another number of slots changes the sizes */
	uint8_t *header = m.meta;
	size_t reserved = offsetof(struct ring_header, reserved);

	for (size_t bit = 0; bit < 8 * (offsetof(struct ring_header, geometry) + sizeof(m.g));
		bit++) {
		if (bit / 8 >= reserved && bit / 8 < reserved + 4)
			continue; /* reserved for later versions */
		header[bit / 8] ^= 1 << bit % 8;
		assert_false(opens(&m, m.g.meta_bytes, m.g.data_bytes));
		header[bit / 8] ^= 1 << bit % 8;
	}
	assert_true(opens(&m, m.g.meta_bytes, m.g.data_bytes));
	maps_free(&m);
}

static void mangled_headers_are_refused(void **state)
{
	(void)state;
	for (unsigned annotations = 0; annotations < 4; annotations++)
		mangled_headers(annotations);
}

static void maps_of_another_size_are_refused(void **state)
{
	struct maps m;

	(void)state;
	maps_make(&m, 3, 4, 33);
	assert_false(opens(&m, m.g.meta_bytes - RING_PAGE, m.g.data_bytes));
	assert_false(opens(&m, m.g.meta_bytes + RING_PAGE, m.g.data_bytes));
	assert_false(opens(&m, m.g.meta_bytes, m.g.data_bytes - 1));
	assert_false(opens(&m, m.g.meta_bytes, m.g.data_bytes + RING_PAGE));
	assert_false(opens(&m, 0, 0));
	assert_false(opens(&m, RING_PAGE - 1, m.g.data_bytes));
	maps_free(&m);
}

/* A random header is refused, or gives a ring inside the mappings. */
static void random_headers_are_refused_or_valid(void **state)
{
	struct rng rng = {22};
	struct maps m;
	unsigned refused = 0;

	(void)state;
	maps_make(&m, 3, 4, 33);
	uint8_t *geometry = (uint8_t *)m.meta + offsetof(struct ring_header, geometry);

	for (unsigned i = 0; i < 100000; i++) {
		struct fault fault;
		struct ring ring;

		for (unsigned hits = 1 + (unsigned)rng_below(&rng, 6); hits > 0; hits--)
			geometry[rng_below(&rng, sizeof(m.g))] = (uint8_t)rng_wide(&rng);
		if (ring_open(&ring, m.meta, m.g.meta_bytes, m.data, m.g.data_bytes, &fault)) {
			assert_int_equal(ring.geometry.meta_bytes, m.g.meta_bytes);
			assert_int_equal(ring.geometry.data_bytes, m.g.data_bytes);
			check_layout(&ring.geometry);
		} else {
			refused++;
		}
		memcpy(geometry, &m.g, sizeof(m.g));
	}
	assert_true(refused > 90000);
	maps_free(&m);
}

/* ---- the words, one thread ---- */

static void released_is_range_checked(void **state)
{
	struct maps m;
	uint64_t released = 2;

	(void)state;
	maps_make(&m, 4, 1, 1);
	ring_release(&m.client, 3);
	assert_true(ring_released(&m.daemon, 5, &released));
	assert_int_equal(released, 3);
	ring_release(&m.client, 2); /* less than before */
	assert_false(ring_released(&m.daemon, 5, &released));
	ring_release(&m.client, 6); /* more than published */
	assert_false(ring_released(&m.daemon, 5, &released));
	ring_release(&m.client, UINT64_MAX);
	assert_false(ring_released(&m.daemon, 5, &released));
	assert_int_equal(released, 3);
	ring_release(&m.client, 5);
	assert_true(ring_released(&m.daemon, 5, &released));
	maps_free(&m);
}

static void waits_cause_one_byte(void **state)
{
	struct maps m;

	(void)state;
	maps_make(&m, 4, 1, 1);
	assert_int_equal(ring_publish(&m.daemon, 1), 0); /* no side waits */
	assert_true(ring_wait_begin(&m.client, 0));	 /* published already */
	assert_false(ring_wait_begin(&m.client, 2));
	assert_int_equal(ring_publish(&m.daemon, 2), 0); /* not the one it waits for */
	assert_int_equal(ring_publish(&m.daemon, 3), 3);
	ring_wait_end(&m.client);
	assert_int_equal(ring_publish(&m.daemon, 4), 0);
	assert_int_equal(ring_release(&m.client, 1), 0);
	ring_wake_at(&m.daemon, 3);
	assert_int_equal(ring_release(&m.client, 2), 0);
	assert_int_equal(ring_release(&m.client, 3), 3);
	ring_wake_at(&m.daemon, 0);
	assert_int_equal(ring_release(&m.client, 4), 0);
	maps_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_aligned_and_do_not_overlap),
		cmocka_unit_test(no_slot_crosses_a_gibibyte),
		cmocka_unit_test(impossible_geometries_are_refused),
		cmocka_unit_test(requested_annotations_have_their_own_room),
		cmocka_unit_test(mangled_headers_are_refused),
		cmocka_unit_test(maps_of_another_size_are_refused),
		cmocka_unit_test(random_headers_are_refused_or_valid),
		cmocka_unit_test(released_is_range_checked),
		cmocka_unit_test(waits_cause_one_byte),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
