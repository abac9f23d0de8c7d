/* Messages: each one is decoded as it was encoded, and nothing else is accepted as a message. */
#include "proto/wire.h"

#include "proto/pack.h"
#include "tests/unit/rng.h"

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

static void messages_survive_the_round_trip(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES);
	struct fault fault;

	(void)state;
	assert_non_null(packet);
	for (unsigned op = 0; op < WIRE_OPS; op++) {
		struct wire w = message(op), back;
		size_t n = wire_encode(&w, packet);

		assert_true(n > 1);
		assert_true(wire_decode(&back, packet, n, &fault));
		assert_same(&w, &back);
		for (unsigned key = WIRE_NUMBERS; key < WIRE_KEYS; key++)
			assert_true(wire_bytes(&back, key).at > packet &&
				    wire_bytes(&back, key).at < packet + n);
	}
	free(packet);
}

static void absent_keys_stay_absent(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES);
	struct wire w = {.op = WIRE_HELLO}, back;
	struct fault fault;

	(void)state;
	wire_set(&w, WIRE_VERSION_KEY, 1);
	assert_true(wire_decode(&back, packet, wire_encode(&w, packet), &fault));
	assert_true(back.has == WIRE_BIT(WIRE_VERSION_KEY));
	assert_false(wire_has(&back, WIRE_HOST));
	free(packet);
}

/* Without one key, a message is valid or the fault names that key. */
static void missing_keys_are_named(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES);
	unsigned refused[WIRE_OPS] = {0};

	(void)state;
	for (unsigned op = 0; op < WIRE_OPS; op++)
		for (unsigned key = 0; key < WIRE_KEYS; key++) {
			struct wire w = message(op), back;
			struct fault fault;

			w.has &= ~WIRE_BIT(key);
			if (wire_decode(&back, packet, wire_encode(&w, packet), &fault))
				continue;
			refused[op]++;
			assert_int_equal(fault.code, FAULT_PROTOCOL);
			w = (struct wire){.op = op};
			if (key < WIRE_NUMBERS)
				wire_set(&w, key, 0);
			else
				wire_set_text(&w, key, "");
			size_t n = wire_encode(&w, packet);

			assert_non_null(memmem(packet, n, fault.field, strlen(fault.field)));
		}
	assert_int_equal(refused[WIRE_HELLO], 1);
	assert_int_equal(refused[WIRE_ATTACH], 7);
	assert_int_equal(refused[WIRE_FEED], 5);
	assert_int_equal(refused[WIRE_CHECKPOINT], 2);
	assert_int_equal(refused[WIRE_SAVED], 3);
	assert_int_equal(refused[WIRE_ERROR], 3);
	assert_int_equal(refused[WIRE_PENDING], 0);
	assert_int_equal(refused[WIRE_REQUEST], 2);
	assert_int_equal(refused[WIRE_ASKED], 3);
	assert_int_equal(refused[WIRE_ANSWER], 3);
	assert_int_equal(refused[WIRE_CANCEL], 1);
	assert_int_equal(refused[WIRE_CANCELLED], 2);
	assert_int_equal(refused[WIRE_DESCRIBE], 0);
	assert_int_equal(refused[WIRE_DESCRIBED], 1);
	free(packet);
}

static void unknown_keys_are_ignored(void **state)
{
	char bytes[256];
	struct pack p = pack_into(bytes, sizeof(bytes));
	struct wire w;
	struct fault fault;

	(void)state;
	pack_map(&p, 5);
	pack_text(&p, "later", 5);
	pack_array(&p, 2);
	pack_map(&p, 1);
	pack_uint(&p, 1);
	pack_uint(&p, 2);
	pack_uint(&p, 3);
	pack_text(&p, "op", 2);
	pack_text(&p, "hello", 5);
	pack_uint(&p, 17); /* a key that is not a text */
	pack_uint(&p, 18);
	pack_text(&p, "version", 7);
	pack_uint(&p, 3);
	pack_text(&p, "versions", 8);
	pack_uint(&p, 4);
	assert_false(p.full);
	assert_true(wire_decode(&w, bytes, p.length, &fault));
	assert_int_equal(w.op, WIRE_HELLO);
	assert_true(w.has == WIRE_BIT(WIRE_VERSION_KEY));
	assert_int_equal(wire_number(&w, WIRE_VERSION_KEY), 3);
}

/* "", or the field that is wrong. */
static const char *decode_pair(const char *key, bool text, const char *op, struct fault *fault)
{
	char bytes[256];
	struct pack p = pack_into(bytes, sizeof(bytes));
	struct wire w;

	pack_map(&p, 2);
	pack_text(&p, "op", 2);
	pack_text(&p, op, strlen(op));
	pack_text(&p, key, strlen(key));
	if (text)
		pack_text(&p, "1", 1);
	else
		pack_uint(&p, 1);
	return wire_decode(&w, bytes, p.length, fault) ? "" : fault->field;
}

static void wrong_types_are_named(void **state)
{
	static const struct {
		const char *key;
		bool text;
		const char *op, *field;
	} cases[] = {
		{"version", false, "hello", ""},
		{"version", true, "hello", "version"},
		{"stream", false, "hello", "stream"},
		{"cursor", true, "hello", "cursor"},
		{"serial", true, "pending", "serial"},
		{"fault", true, "pending", "fault"},
		{"serial", false, "pending", ""},
		{"version", false, "hullo", "op"},
		{"version", false, "", "op"},
	};
	struct fault fault;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(decode_pair(cases[i].key, cases[i].text, cases[i].op, &fault),
			cases[i].field);
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

static void packets_that_are_no_message_are_refused(void **state)
{
	char *packet = calloc(1, LIMIT_PACKET_BYTES + 1);
	struct wire w;
	struct fault fault;

	(void)state;
	assert_false(wire_decode(&w, packet, 0, &fault));
	assert_false(wire_decode(&w, "\0", 1, &fault)); /* a wake-up */
	assert_false(wire_decode(&w, "\x90", 1, &fault));
	assert_false(wire_decode(&w, "\x80", 1, &fault));
	assert_false(wire_decode(&w, "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 10, &fault));
	assert_string_equal(fault.text, "nested too deeply");
	assert_false(wire_decode(&w, packet, LIMIT_PACKET_BYTES + 1, &fault));
	assert_string_equal(fault.text, "longer than 128 KiB, or more than 256 values");
	packet[0] = '\xdc'; /* an array of 4,096 zeros */
	packet[1] = 0x10;
	assert_false(wire_decode(&w, packet, 3 + 4096, &fault));
	assert_string_equal(fault.text, "longer than 128 KiB, or more than 256 values");
	free(packet);
}

static void packets_that_are_too_long_are_not_encoded(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES), *cursor = calloc(1, LIMIT_PACKET_BYTES);
	struct wire w = {.op = WIRE_CHECKPOINT}, back;
	struct fault fault;

	(void)state;
	wire_set_text(&w, WIRE_TAG, "t");
	wire_set_bytes(&w, WIRE_CURSOR, cursor, LIMIT_PACKET_BYTES);
	assert_int_equal(wire_encode(&w, packet), 0);
	wire_set_bytes(&w, WIRE_CURSOR, cursor, LIMIT_CURSOR_BYTES);
	assert_true(wire_decode(&back, packet, wire_encode(&w, packet), &fault));
	assert_int_equal(wire_bytes(&back, WIRE_CURSOR).n, LIMIT_CURSOR_BYTES);
	free(cursor);
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
	free(packet);
	free(args);
	free(back);
	free(cursor);
}

static void texts_are_copied_if_they_fit(void **state)
{
	struct wire w = {.op = WIRE_ERROR};
	char to[6];

	(void)state;
	assert_false(wire_text(&w, WIRE_TEXT, to, sizeof(to)));
	wire_set_text(&w, WIRE_TEXT, "12345");
	assert_true(wire_text(&w, WIRE_TEXT, to, sizeof(to)));
	assert_string_equal(to, "12345");
	wire_set_text(&w, WIRE_TEXT, "123456");
	assert_false(wire_text(&w, WIRE_TEXT, to, sizeof(to)));
	wire_set_bytes(&w, WIRE_TEXT, "12\0", 3);
	assert_false(wire_text(&w, WIRE_TEXT, to, sizeof(to)));
	wire_set_text(&w, WIRE_TEXT, "");
	assert_true(wire_text(&w, WIRE_TEXT, to, sizeof(to)));
	assert_string_equal(to, "");
}

static void packets_cut_at_every_byte_are_refused(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES);
	struct wire w = message(WIRE_ATTACH), back;
	size_t n = wire_encode(&w, packet);
	struct fault fault;

	(void)state;
	for (size_t cut = 0; cut < n; cut++) {
		char *exact = malloc(cut ? cut : 1);

		memcpy(exact, packet, cut);
		assert_false(wire_decode(&back, exact, cut, &fault));
		free(exact);
	}
	free(packet);
}

static void mutated_packets_are_safe(void **state)
{
	char *packet = malloc(LIMIT_PACKET_BYTES), *again = malloc(LIMIT_PACKET_BYTES);
	struct rng rng = {12};
	unsigned fine = 0, refused = 0;
	struct fault fault;

	(void)state;
	for (unsigned i = 0; i < 100000; i++) {
		struct wire w = message(rng_below(&rng, WIRE_OPS)), back, once_more;
		size_t n = wire_encode(&w, packet);

		for (unsigned hits = 1 + (unsigned)rng_below(&rng, 4); hits > 0; hits--)
			packet[rng_below(&rng, n)] = (char)rng_next(&rng);
		if (!wire_decode(&back, packet, n, &fault)) {
			refused++;
			continue;
		}
		fine++;
		assert_true(wire_decode(&once_more, again, wire_encode(&back, again), &fault));
		assert_same(&back, &once_more);
	}
	assert_true(fine > 100 && refused > 100);
	free(packet);
	free(again);
}

static void op_names_differ(void **state)
{
	(void)state;
	for (unsigned a = 0; a < WIRE_OPS; a++)
		for (unsigned b = 0; b < a; b++)
			assert_string_not_equal(wire_op_name(a), wire_op_name(b));
}

static void names_are_checked(void **state)
{
	char longest[LIMIT_NAME_BYTES + 2];

	(void)state;
	memset(longest, 'n', sizeof(longest));
	longest[LIMIT_NAME_BYTES + 1] = 0;
	assert_false(wire_name_ok(longest));
	longest[LIMIT_NAME_BYTES] = 0;
	assert_true(wire_name_ok(longest));
	assert_true(wire_name_ok("train"));
	assert_true(wire_name_ok("step_1000@node-1:2+x.y"));
	assert_true(wire_name_ok("a..b"));
	assert_false(wire_name_ok(""));
	assert_false(wire_name_ok("."));
	assert_false(wire_name_ok(".."));
	assert_false(wire_name_ok(".hidden"));
	assert_false(wire_name_ok("a/b"));
	assert_false(wire_name_ok("a\nb"));
	assert_false(wire_name_ok("a\x7f"));
}

static void labels_are_checked(void **state)
{
	(void)state;
	assert_true(wire_label_ok("a/b"));
	assert_true(wire_label_ok(".x"));
	assert_true(wire_label_ok("\xc3\xa9\xe6\x96\x87\xf0\x9f\x98\x80"));
	assert_false(wire_label_ok(""));
	assert_false(wire_label_ok("tab\t"));
	assert_false(wire_label_ok("\xc3"));		     /* cut short */
	assert_false(wire_label_ok("\x80"));		     /* no lead */
	assert_false(wire_label_ok("\xc0\xaf"));	     /* overlong '/' */
	assert_false(wire_label_ok("\xed\xa0\x80"));	     /* a surrogate */
	assert_false(wire_label_ok("\xf4\x90\x80\x80"));     /* above U+10FFFF */
	assert_false(wire_label_ok("\xc2\x85"));	     /* a C1 control */
	assert_false(wire_label_ok("\xf8\x88\x80\x80\x80")); /* five bytes */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_survive_the_round_trip),
		cmocka_unit_test(absent_keys_stay_absent),
		cmocka_unit_test(missing_keys_are_named),
		cmocka_unit_test(unknown_keys_are_ignored),
		cmocka_unit_test(wrong_types_are_named),
		cmocka_unit_test(codes_are_sent_as_number_and_word),
		cmocka_unit_test(packets_that_are_no_message_are_refused),
		cmocka_unit_test(packets_that_are_too_long_are_not_encoded),
		cmocka_unit_test(the_longest_request_and_answer_fit),
		cmocka_unit_test(texts_are_copied_if_they_fit),
		cmocka_unit_test(packets_cut_at_every_byte_are_refused),
		cmocka_unit_test(mutated_packets_are_safe),
		cmocka_unit_test(op_names_differ),
		cmocka_unit_test(names_are_checked),
		cmocka_unit_test(labels_are_checked),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
