/*
 * A libFuzzer target: the input is a packet. A packet that is decoded, encoded and decoded again is
 * the same message, and its second encoding has the same bytes.
 */
#include "proto/place.h"
#include "proto/wire.h"

#include "tests/fuzz/input.h"

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
	assert(wire_code(w) < FAULT_CODES);
	for (unsigned key = WIRE_NUMBERS; key < WIRE_KEYS; key++)
		if (wire_has(w, key))
			check_text(w, key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fault fault = {0};
	struct wire w;

	if (wire_decode(&w, data, size, &fault)) {
		check_message(&w);
	} else {
		check_fault(&fault);
		assert(fault.code == FAULT_PROTOCOL && fault.field[0]);
	}
	return 0;
}
