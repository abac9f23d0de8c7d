/* Cursors of the order's example, and their bytes. Include it after cmocka.h. */
#ifndef TESTS_CURSORS_H
#define TESTS_CURSORS_H

#include "proto/cursor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { HEADER = 16 }; /* magic, version, checksum */

struct bytes {
	uint8_t at[LIMIT_CURSOR_BYTES];
	size_t n;
};

static inline struct cursor identity(uint64_t epochs, uint64_t samples)
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
	{"web", .7, 1249, 0xb3960afe8c9f9ec6, 64, 64, ORDER_GLOBAL, false, 0, 0, 0},
	{"code", .25, 332, 0xe6b64183fa5596cf, 8, 3, ORDER_BLOCK, false, 0, 0, 0},
	{"math", .05, 46, 7, 64, 64, ORDER_NONE, true, 0, 0, 0},
};

static inline struct cursor begin_as(uint64_t epochs, uint64_t samples)
{
	struct cursor id = identity(epochs, samples), c;
	struct fault fault;

	assert_true(cursor_begin(&c, &id, three, 3, NULL, 0, &fault));
	return c;
}

static inline struct cursor begin(void)
{
	return begin_as(0, 0);
}

static inline struct bytes *encode(const struct cursor *c)
{
	struct bytes *b = malloc(sizeof(*b));

	assert_non_null(b);
	b->n = cursor_encode(c, b->at, sizeof(b->at));
	assert_true(b->n > HEADER);
	return b;
}

/* Decodes a copy of exactly @n bytes, so that a sanitizer sees any byte read past them. */
static inline bool decode(struct cursor *out, const void *bytes, size_t n, struct fault *fault)
{
	void *copy = malloc(n ? n : 1);
	bool ok;

	assert_non_null(copy);
	memcpy(copy, bytes, n);
	memset(fault, 0, sizeof(*fault));
	ok = cursor_decode(out, copy, n, fault);
	free(copy);
	if (!ok)
		assert_true(fault->field[0] && fault->text[0] && !strchr(fault->text, '\n'));
	return ok;
}

#endif
