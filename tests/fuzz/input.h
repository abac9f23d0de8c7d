/* Takes the parts of an input one after another. After its end all numbers are 0. */
#ifndef TOKEND_FUZZ_INPUT_H
#define TOKEND_FUZZ_INPUT_H

#include "proto/fault.h"
#include "proto/order.h"
#include "tests/fuzz/fail.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* Of each target. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *at;
	size_t n;
};

/* Takes @n bytes, or fewer. */
static inline struct input input_part(struct input *in, size_t n)
{
	struct input part = {in->at, n < in->n ? n : in->n};

	in->at += part.n;
	in->n -= part.n;
	return part;
}

static inline uint64_t input_number(struct input *in, size_t bytes)
{
	struct input part = input_part(in, bytes);
	uint64_t value = 0;

	memcpy(&value, part.at, part.n);
	return value;
}

static inline uint8_t input_byte(struct input *in)
{
	return (uint8_t)input_number(in, 1);
}

/* A part whose length, two bytes, is before it. */
static inline struct input input_sized(struct input *in)
{
	return input_part(in, input_number(in, 2));
}

/* A number of 1, 2, 4 or 8 bytes, or close to one where arithmetic may overflow. */
static inline uint64_t input_any(struct input *in)
{
	uint8_t kind = input_byte(in);

	if (kind % 8 < 4)
		return input_number(in, (size_t)1 << kind % 8);
	if (kind % 8 == 4)
		return (UINT64_C(1) << (kind / 8 + 32)) + (uint64_t)(int8_t)input_byte(in);
	if (kind % 8 == 5)
		return UINT64_MAX - input_byte(in);
	if (kind % 8 == 6)
		return input_number(in, 2) * 1024;
	return input_number(in, 4) * 1024;
}

/* Changes a byte of a cursor, and repairs its checksum. */
static inline void input_change_cursor(uint8_t *cursor, size_t n, uint64_t at, uint8_t byte)
{
	uint64_t sum;

	cursor[16 + at % (n - 16)] = byte;
	sum = order_checksum(cursor + 16, n - 16);
	memcpy(cursor + 8, &sum, sizeof(sum));
}

/* The failures that the input begins with start now. */
static inline void input_fail(struct input *in)
{
	uint8_t plan[FAIL_BYTES] = {input_byte(in), input_byte(in)};

	fail_plan(plan);
}

/* Every error has a code, and one line of text. */
static inline void check_fault(const struct fault *fault)
{
	assert(fault->code > FAULT_NONE && fault->code < FAULT_CODES);
	assert(memchr(fault->field, 0, sizeof(fault->field)));
	assert(fault->text[0] && memchr(fault->text, 0, sizeof(fault->text)));
	assert(!strchr(fault->text, '\n') && !strchr(fault->field, '\n'));
}

#endif
