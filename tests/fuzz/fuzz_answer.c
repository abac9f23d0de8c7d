/*
 * A libFuzzer target: the input becomes the headers of an HTTP answer and the body of an error. The
 * judgement on them is bounded: no more bytes than were asked for, and one line of text.
 *
 * An input is: a byte (what was asked for), numbers for size, offset and length, the sized body of
 * an error, the headers.
 */
#include "daemon/store/verdict.h"
#include "tests/fuzz/input.h"

#include <assert.h>
#include <string.h>

static void check(const struct verdict_asked *asked, const struct answer *a)
{
	struct verdict v;

	verdict_answer(asked, a, verdict_body(asked, a), &v);
	assert(strlen(v.reason) < sizeof(v.reason) && v.remedy);
	for (const char *c = v.reason; *c; c++)
		assert((unsigned char)*c >= 0x20 && *c != 0x7f);
	assert((v.kind == VERDICT_GOOD) == !v.reason[0]);
	if (v.kind != VERDICT_GOOD)
		return;
	if (asked->want == VERDICT_RANGE)
		assert(verdict_body(asked, a) == asked->n);
	if (asked->want == VERDICT_BEGIN)
		assert(verdict_body(asked, a) <= asked->n);
	if (asked->want == VERDICT_RANGE && asked->etag)
		assert(a->has_etag && strcmp(a->etag, asked->etag) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t kind = input_byte(&in);
	struct verdict_asked asked = {
		.want = kind % 4, .etag = kind & 4 ? "e-16" : NULL, .size = STORE_SIZE_UNKNOWN};
	struct answer answer = {.size = STORE_SIZE_UNKNOWN};

	if (kind & 8)
		asked.size = input_number(&in, 4) + 1;
	asked.at = input_number(&in, 3);
	asked.n = input_number(&in, 2) + 1;
	struct input body = input_sized(&in);

	while (in.n > 0) {
		const uint8_t *end = memchr(in.at, '\n', in.n);
		struct input line = input_part(&in, end ? (size_t)(end - in.at) + 1 : in.n);

		if (!answer_header(&answer, (const char *)line.at, line.n))
			break;
	}
	assert(answer.header_bytes <= ANSWER_HEADER_BYTES || answer.too_long);
	assert(answer.retry_after_s <= ANSWER_RETRY_S && answer.status < 600);
	answer_error(&answer, (const char *)body.at,
		body.n < ANSWER_ERROR_BYTES ? body.n : ANSWER_ERROR_BYTES);
	check(&asked, &answer);
	return 0;
}
