/*
 * A libFuzzer target: the input is a packet, or says which message to build. A packet that is
 * decoded, encoded and decoded again is the same message, and its second encoding has the same
 * bytes.
 *
 * An input is a byte, 0: a packet follows; otherwise: an op, then a key and a value, again and
 * again.
 */
#include "proto/place.h"
#include "proto/wire.h"

#include "tests/fuzz/check_fault.h"
#include "tests/fuzz/count.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/mutate_pack.h"

#include <stdio.h>

static void check_same(const struct wire *a, const struct wire *b)
{
	assert(a->op == b->op && a->has == b->has);
	for (unsigned key = 0; key < WIRE_KEYS; key++) {
		if (!wire_has(a, key))
			continue;
		if (key < WIRE_NUMBERS) {
			assert(wire_number(a, key) == wire_number(b, key));
			continue;
		}
		struct wire_bytes x = wire_bytes(a, key), y = wire_bytes(b, key);

		assert(x.n == y.n && memcmp(x.at, y.at, x.n) == 0);
	}
}

static void check_numbers(const char *text)
{
	uint64_t value = 7, again;
	char digits[32];

	if (!wire_digits(text, &value)) {
		assert(value == 7);
		return;
	}
	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	assert(wire_digits(digits, &again) && again == value);
}

/* The checks of a text that someone else wrote. */
static void check_text(const struct wire *w, enum wire_key key)
{
	static char whole[LIMIT_PACKET_BYTES + 1];
	uint32_t n = wire_bytes(w, key).n;
	char some[4], path[WIRE_SOCKET_BYTES];

	assert(!wire_text(w, key, whole, n));
	assert(!wire_text(w, key, some, sizeof(some)) || n < sizeof(some));
	if (!wire_text(w, key, whole, n + 1)) {
		assert(memchr(wire_bytes(w, key).at, 0, n));
		return;
	}
	assert(strlen(whole) == n);
	if (wire_name_ok(whole))
		assert(wire_label_ok(whole) && !strchr(whole, '/') && n <= LIMIT_NAME_BYTES);
	if (wire_label_ok(whole))
		assert(n >= 1 && n <= LIMIT_NAME_BYTES);
	check_numbers(whole);
	if (place_own(whole, n, "tokend.sock", path))
		assert(strlen(path) < sizeof(path) && strncmp(path, whole, n) == 0);
	assert(place_own(NULL, n, "tokend.sock", path));
}

static void check_message(const struct wire *w)
{
	static uint8_t once[LIMIT_PACKET_BYTES], twice[LIMIT_PACKET_BYTES];
	size_t n = wire_encode(w, once);
	struct fault fault;
	struct wire again;

	assert(n > 0 && n <= sizeof(once));
	assert(wire_decode(&again, once, n, &fault));
	check_same(w, &again);
	assert(wire_encode(&again, twice) == n && memcmp(once, twice, n) == 0);
	assert(wire_op_name(w->op)[0]);
	enum fault_code code = wire_code(w);

	assert(code < FAULT_CODES && (code == FAULT_NONE || wire_code_name(code)));
	for (unsigned key = WIRE_NUMBERS; key < WIRE_KEYS; key++)
		if (wire_has(w, key))
			check_text(w, key);
	if (code != FAULT_NONE) {
		wire_set_code(&again, code);
		assert(wire_code(&again) == code);
	}
}

static void decode(struct input in)
{
	uint8_t *copy = malloc(in.n ? in.n : 1); /* so that any byte read past it is seen */
	struct fault fault = {0};
	struct wire w;

	memcpy(copy, in.at, in.n);
	if (wire_decode(&w, copy, in.n, &fault)) {
		check_message(&w);
	} else {
		check_fault(&fault);
		assert(fault.code == FAULT_PROTOCOL && fault.field[0]);
		count(25);
	}
	free(copy);
}

static void build(struct input in, enum wire_op op)
{
	static uint8_t packet[LIMIT_PACKET_BYTES];
	struct wire w = {.op = op % WIRE_OPS}, again;
	struct fault fault;

	while (in.n > 0) {
		enum wire_key key = input_byte(&in) % WIRE_KEYS;
		struct input part;

		if (key < WIRE_NUMBERS) {
			wire_set(&w, key, input_any(&in));
		} else {
			part = input_sized(&in);
			wire_set_bytes(&w, key, part.at, part.n);
		}
	}
	size_t n = wire_encode(&w, packet);

	/* 0: several keys may share bytes of the input, so that they are too long together. */
	if (n > 0 && wire_decode(&again, packet, n, &fault))
		check_message(&w);
	else if (n > 0)
		check_fault(&fault); /* a key that the message needs is missing */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t op = input_byte(&in);

	if (op == 0)
		decode(in);
	else
		build(in, op - 1);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
	size_t n = size > 1 && data[0] == 0 && seed % 4 != 0
			   ? mutate_pack(data + 1, size - 1, most - 1, seed / 4)
			   : 0;

	return n ? n + 1 : LLVMFuzzerMutate(data, size, most);
}
