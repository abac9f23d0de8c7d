/*
 * Messages that only a daemon sends or only a client reads. system/test_bad_input.py has what a
 * daemon refuses; fuzz_wire decodes and encodes all of them.
 */
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A message of each kind, with its required keys and more. */
static struct wire message(enum wire_op op)
{
	struct wire w = {.op = op};

	for (unsigned key = 0; key < WIRE_NUMBERS; key++)
		wire_set(&w, key, UINT64_MAX >> (key % 32 * 2));
	for (unsigned key = WIRE_NUMBERS; key < WIRE_KEYS; key++)
		wire_set_text(&w, key, "some text");
	return w;
}

static void assert_same(const struct wire *a, const struct wire *b)
{
	assert_int_equal(a->op, b->op);
	assert_true(a->has == b->has);
	for (unsigned key = 0; key < WIRE_NUMBERS; key++)
		assert_true(!wire_has(a, key) || wire_number(a, key) == wire_number(b, key));
	for (unsigned key = WIRE_NUMBERS; key < WIRE_KEYS; key++) {
		struct wire_bytes x = wire_bytes(a, key), y = wire_bytes(b, key);

		if (!wire_has(a, key))
			continue;
		assert_int_equal(x.n, y.n);
		assert_memory_equal(x.at, y.at, x.n);
	}
}

/* FAULT_NONE: the number and the word are unknown. */
static void codes_are_sent_as_number_and_word(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES);
	static const struct {
		const char *word;
		enum fault_code code;
	} words[] = {
		{"attach", FAULT_ATTACH},
		{"checkpoint", FAULT_CHECKPOINT},
		{"cursor", FAULT_CURSOR},
		{"data", FAULT_DATA},
		{"descriptors", FAULT_DESCRIPTORS},
		{"memory", FAULT_MEMORY},
		{"protocol", FAULT_PROTOCOL},
		{"request", FAULT_REQUEST},
		{"state_dir", FAULT_STATE_DIR},
		{"uid", FAULT_PERMISSION},
		{"dat", FAULT_NONE},
		{"data2", FAULT_NONE},
		{"", FAULT_NONE},
	};
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct wire w = {.op = WIRE_ERROR};

		assert_int_equal(wire_code(&w), FAULT_NONE);
		wire_set_text(&w, WIRE_CODE, words[i].word);
		assert_int_equal(wire_code(&w), words[i].code);
		wire_set(&w, WIRE_FAULT, FAULT_CODES); /* from a later release */
		assert_int_equal(wire_code(&w), words[i].code);
		wire_set(&w, WIRE_FAULT, UINT64_MAX);
		assert_int_equal(wire_code(&w), words[i].code);
		if (words[i].code != FAULT_NONE)
			assert_string_equal(wire_code_name(words[i].code), words[i].word);
	}
	for (unsigned code = FAULT_NONE + 1; code < FAULT_CODES; code++) {
		struct wire w = {.op = WIRE_ERROR}, back;

		wire_set_code(&w, code);
		wire_set_text(&w, WIRE_FIELD, "f");
		wire_set_text(&w, WIRE_TEXT, "t");
		assert_true(wire_decode(&back, packet, wire_encode(&w, packet), &fault));
		assert_int_equal(wire_code(&back), code);
		back.has &= ~WIRE_BIT(WIRE_FAULT); /* an older release uses the word */
		assert_int_not_equal(wire_code(&back), FAULT_NONE);
	}
	free(packet);
}

/* The longest values of each kind, all in one message. */
static void the_longest_request_and_answer_fit(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES), *args = malloc(WIRE_ARGS_BYTES),
	     *back = malloc(WIRE_ARGS_BYTES);
	char *cursor = calloc(1, LIMIT_CURSOR_BYTES), text[LIMIT_TEXT_BYTES + 1],
	     name[LIMIT_NAME_BYTES + 1];
	struct wire w = {.op = WIRE_REQUEST}, heard;
	struct fault fault;

	(void)state;
	memset(args, 'a', WIRE_ARGS_BYTES - 1);
	args[WIRE_ARGS_BYTES - 1] = 0;
	memset(text, 't', LIMIT_TEXT_BYTES);
	text[LIMIT_TEXT_BYTES] = 0;
	memset(name, 'n', LIMIT_NAME_BYTES);
	name[LIMIT_NAME_BYTES] = 0;
	wire_set_text(&w, WIRE_STREAM, name);
	wire_set_text(&w, WIRE_RUN, name);
	wire_set_text(&w, WIRE_KIND, name);
	wire_set_text(&w, WIRE_ARGS, args);
	assert_true(wire_decode(&heard, packet, wire_encode(&w, packet), &fault));
	assert_true(wire_text(&heard, WIRE_ARGS, back, WIRE_ARGS_BYTES));
	assert_string_equal(back, args);

	w = message(WIRE_ANSWER);
	w.has &= ~WIRE_BIT(WIRE_ARGS);
	for (unsigned key = 0; key < WIRE_NUMBERS; key++)
		wire_set(&w, key, UINT64_MAX);
	wire_set_text(&w, WIRE_RUN, name);
	wire_set_text(&w, WIRE_HOST, name);
	wire_set_text(&w, WIRE_TEXT, text);
	wire_set_bytes(&w, WIRE_CURSOR, cursor, LIMIT_CURSOR_BYTES);
	assert_true(wire_decode(&heard, packet, wire_encode(&w, packet), &fault));
	assert_same(&w, &heard);
	wire_set_bytes(&w, WIRE_CURSOR, packet, LIMIT_PACKET_BYTES); /* longer than any message */
	assert_int_equal(wire_encode(&w, packet), 0);
	free(packet);
	free(args);
	free(back);
	free(cursor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(codes_are_sent_as_number_and_word),
		cmocka_unit_test(the_longest_request_and_answer_fit),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
