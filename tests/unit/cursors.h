/* A cursor of the order's example, and its bytes. Include it after cmocka.h. */
#ifndef TESTS_CURSORS_H
#define TESTS_CURSORS_H

#include "proto/cursor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { HEADER = 16 }; /* magic, version, checksum */

struct encoded {
	uint8_t at[LIMIT_CURSOR_BYTES];
	size_t n;
};

static inline struct cursor identity(void)
{
	return (struct cursor){
		.stream = "train", .seed = 42, .seq_len = 64, .extra = 1, .stride = 64};
}

static const struct cursor_source web = {
	"web", .7, 1249, 0xb3960afe8c9f9ec6, 64, 64, ORDER_GLOBAL, false, 0, 0, 0};

static inline struct encoded *encode(const struct cursor *c)
{
	struct encoded *b = malloc(sizeof(*b));

	assert_non_null(b);
	b->n = cursor_encode(c, b->at, sizeof(b->at));
	assert_true(b->n > HEADER);
	return b;
}

#endif
