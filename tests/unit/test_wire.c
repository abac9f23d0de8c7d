/* The codes of errors, which releases send in two forms. fuzz_wire has all other keys. */
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(codes_are_sent_as_number_and_word),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
