/* Headers of answers, the judgement on them, and when a range is fetched again. */
#include "daemon/store/answer.h"
#include "daemon/store/retry.h"
#include "daemon/store/verdict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct answer parse(const char *text)
{
	struct answer answer = {.size = STORE_SIZE_UNKNOWN};

	while (*text) {
		size_t n = strcspn(text, "\n") + 1;

		assert_true(answer_header(&answer, text, n));
		text += n;
	}
	return answer;
}

static void test_headers_of_a_range(void **state)
{
	struct answer a = parse("HTTP/1.1 206 Partial Content\r\nETag: \"ab-16\"\r\n"
				"content-range:bytes 100-199/1000\r\nContent-Length: 100\r\n\r\n");

	(void)state;
	assert_int_equal(a.status, 206);
	assert_true(a.has_range && a.has_length && a.has_etag && !a.encoded);
	assert_int_equal(a.from, 100);
	assert_int_equal(a.to, 199);
	assert_int_equal(a.size, 1000);
	assert_int_equal(a.length, 100);
	assert_string_equal(a.etag, "ab-16");
	a = parse("HTTP/1.1 403 x\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
	assert_int_equal(a.date, 784111777);
}

static void test_broken_headers_say_nothing(void **state)
{
	static const char *const ranges[] = {"bytes", "bytes 1", "bytes 1-", "bytes 5-4/9",
		"bytes -4/9", "bytes 0-18446744073709551616/9", "octets 0-4/9", "bytes 0-4"};
	static const char *const dates[] = {"", "yesterday", "Sun, 06 Nox 1994 08:49:37 GMT",
		"Sun, 06 Nov 19 08:49:37 GMT", "Sun, 06 ovD 1994 08:49:37 GMT"};
	char text[200];

	(void)state;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		snprintf(text, sizeof(text), "HTTP/1.1 206 x\r\nContent-Range: %s\r\n", ranges[i]);
		assert_false(parse(text).has_range);
	}
	for (size_t i = 0; i < sizeof(dates) / sizeof(dates[0]); i++)
		assert_int_equal(answer_date(dates[i]), 0);
	assert_false(parse("HTTP/1.1 206 x\r\nContent-Length: 12x\r\n").has_length);
	assert_int_equal(parse("HTTP/1.1 99999 x\r\n").status, 0);
}

static void test_a_later_status_line_begins_anew(void **state)
{
	struct answer a = parse("HTTP/1.1 302 Found\r\nETag: \"page\"\r\nRetry-After: 9\r\n\r\n"
				"HTTP/1.1 206 x\r\nContent-Range: bytes 0-0/1\r\n\r\n");

	(void)state;
	assert_int_equal(a.status, 206);
	assert_false(a.has_etag);
	assert_int_equal(a.retry_after_s, 0);
}

static void test_retry_after_in_seconds_or_as_a_date(void **state)
{
	(void)state;
	assert_int_equal(parse("HTTP/1.1 503 x\r\nRetry-After: 7\r\n").retry_after_s, 7);
	assert_int_equal(parse("HTTP/1.1 503 x\r\nRetry-After: 7000\r\n").retry_after_s, 60);
	assert_int_equal(parse("HTTP/1.1 503 x\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
			       "Retry-After: Sun, 06 Nov 1994 08:49:47 GMT\r\n")
				 .retry_after_s,
		10);
	assert_int_equal(parse("HTTP/1.1 503 x\r\nRetry-After: Sun, 06 Nov 1994 08:49:47 GMT\r\n"
			       "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n")
				 .retry_after_s,
		10);
}

static void test_endless_headers_end_the_get(void **state)
{
	struct answer a = {0};
	char line[1000];
	unsigned n = 0;

	(void)state;
	memset(line, 'x', sizeof(line));
	while (answer_header(&a, line, sizeof(line)))
		assert_true(++n < 1000);
	assert_int_equal(n, ANSWER_HEADER_BYTES / sizeof(line));
	assert_true(a.too_long);
}

static void test_code_of_an_error(void **state)
{
	static const char body[] = "<?xml?><Error><Code>SlowDown</Code><Region>eu-1</Region>";
	static const char torn[] = "<Error><Code>Slow";
	struct answer a = {0}, b = {0};

	(void)state;
	answer_error(&a, body, sizeof(body) - 1);
	assert_string_equal(a.code, "SlowDown");
	assert_string_equal(a.region, "eu-1");
	answer_error(&b, torn, sizeof(torn) - 1);
	assert_string_equal(b.code, "");
}

/* A GET of bytes 100 to 199 of an object of 1000, and its answer. */
static const struct judged {
	const char *headers, *code;
	uint64_t n;
	enum verdict_kind kind;
	bool overload;
} judged[] = {
#define GOOD "HTTP/1.1 206 x\r\nETag: \"e\"\r\nContent-Length: 100\r\n"
	{GOOD "Content-Range: bytes 100-199/1000\r\n", "", 100, VERDICT_GOOD, false},
	{GOOD "Content-Range: bytes 100-199/*\r\n", "", 100, VERDICT_GOOD, false},
	{GOOD "Content-Range: bytes 100-199/1000\r\n", "", 99, VERDICT_TORN, false},
	{GOOD "Content-Range: bytes 100-199/1000\r\n", "", 101, VERDICT_TORN, false},
	{GOOD "Content-Range: bytes 0-99/1000\r\n", "", 100, VERDICT_TORN, false},
	{"HTTP/1.1 206 x\r\nETag: \"e\"\r\nContent-Range: bytes 99-199/1000\r\n", "", 101,
		VERDICT_TORN, false},
	{GOOD "Content-Range: bytes 100-198/1000\r\n", "", 99, VERDICT_TORN, false},
	{GOOD "Content-Range: bytes 100-199/1001\r\n", "", 100, VERDICT_OTHER, false},
	{GOOD, "", 100, VERDICT_TORN, false},
	{GOOD "Content-Range: bytes 100-199/1000\r\nContent-Encoding: gzip\r\n", "", 100,
		VERDICT_FINAL, false},
	{"HTTP/1.1 206 x\r\nETag: \"f\"\r\nContent-Range: bytes 100-199/1000\r\n", "", 100,
		VERDICT_OTHER, false},
	{"HTTP/1.1 206 x\r\nETag: W/\"e\"\r\nContent-Range: bytes 100-199/1000\r\n", "", 100,
		VERDICT_OTHER, false},
	{"HTTP/1.1 200 x\r\nETag: \"e\"\r\nContent-Length: 1000\r\n", "", 1000, VERDICT_FINAL,
		false},
	{"HTTP/1.1 200 x\r\nContent-Length: 31\r\n", "", 31, VERDICT_TORN, false},
	{"HTTP/1.1 200 x\r\n", "", 31, VERDICT_TORN, false},
	{"HTTP/1.1 500 x\r\n", "InternalError", 0, VERDICT_HEALS, false},
	{"HTTP/1.1 503 x\r\n", "SlowDown", 0, VERDICT_HEALS, true},
	{"HTTP/1.1 429 x\r\n", "", 0, VERDICT_HEALS, true},
	{"HTTP/1.1 522 x\r\n", "", 0, VERDICT_HEALS, false},
	{"HTTP/1.1 400 x\r\n", "RequestTimeout", 0, VERDICT_HEALS, false},
	{"HTTP/1.1 400 x\r\n", "ExpiredToken", 0, VERDICT_EXPIRED, false},
	{"HTTP/1.1 401 x\r\n", "", 0, VERDICT_EXPIRED, false},
	{"HTTP/1.1 403 x\r\n", "RequestTimeTooSkewed", 0, VERDICT_CLOCK, false},
	{"HTTP/1.1 403 x\r\n", "AccessDenied", 0, VERDICT_DENIED, false},
	{"HTTP/1.1 403 x\r\n", "SignatureDoesNotMatch", 0, VERDICT_DENIED, false},
	{"HTTP/1.1 403 x\r\n", "InvalidObjectState", 0, VERDICT_FINAL, false},
	{"HTTP/1.1 404 x\r\n", "NoSuchKey", 0, VERDICT_OTHER, false},
	{"HTTP/1.1 404 x\r\n", "NoSuchBucket", 0, VERDICT_FINAL, false},
	{"HTTP/1.1 412 x\r\n", "", 0, VERDICT_OTHER, false},
	{"HTTP/1.1 416 x\r\nContent-Range: bytes */50\r\n", "", 0, VERDICT_OTHER, false},
	{"HTTP/1.1 301 x\r\n", "PermanentRedirect", 0, VERDICT_FINAL, false},
	{"HTTP/1.1 405 x\r\n", "", 0, VERDICT_FINAL, false},
};

static void test_judgement(void **state)
{
	const struct verdict_asked asked = {VERDICT_RANGE, "e", 1000, 100, 100};
	struct verdict v;

	(void)state;
	for (size_t i = 0; i < sizeof(judged) / sizeof(judged[0]); i++) {
		const struct judged *j = &judged[i];
		struct answer a = parse(j->headers);

		snprintf(a.code, sizeof(a.code), "%s", j->code);
		verdict_answer(&asked, &a, j->n, &v);
		if (v.kind != j->kind || v.overload != j->overload)
			fail_msg("%s%s: kind %d: %s", j->headers, j->code, v.kind, v.reason);
		assert_int_equal(v.kind == VERDICT_GOOD, v.reason[0] == 0);
	}
}

/* Wrong keys do not concern one object. */
static void test_denials_of_keys(void **state)
{
	static const char *const codes[] = {"AccessDenied", "InvalidAccessKeyId",
		"SignatureDoesNotMatch", "AuthenticationFailed"};
	const struct verdict_asked asked = {VERDICT_RANGE, "e", 1000, 100, 100};
	struct verdict v;

	(void)state;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		struct answer a = parse("HTTP/1.1 403 x\r\n");

		snprintf(a.code, sizeof(a.code), "%s", codes[i]);
		verdict_answer(&asked, &a, 0, &v);
		assert_int_equal(v.kind, VERDICT_DENIED);
		assert_int_equal(v.keys, i > 0);
	}
}

static enum verdict_kind judge(
	enum verdict_want want, uint64_t size, size_t n, const char *headers, uint64_t body)
{
	const struct verdict_asked asked = {want, NULL, size, 0, n};
	struct answer a = parse(headers);
	struct verdict v;

	verdict_answer(&asked, &a, body, &v);
	return v.kind;
}

static void test_judgement_of_whole_objects(void **state)
{
	(void)state;
	/* A listing comes in chunks, without a length. */
	assert_int_equal(judge(VERDICT_WHOLE, STORE_SIZE_UNKNOWN, 100, "HTTP/1.1 200 x\r\n", 100),
		VERDICT_GOOD);
	assert_int_equal(judge(VERDICT_WHOLE, STORE_SIZE_UNKNOWN, 100, "HTTP/1.1 200 x\r\n", 101),
		VERDICT_TORN);
	assert_int_equal(
		judge(VERDICT_RANGE, 100, 100, "HTTP/1.1 200 x\r\nContent-Length: 100\r\n", 100),
		VERDICT_GOOD);
	assert_int_equal(
		judge(VERDICT_RANGE, 100, 100, "HTTP/1.1 200 x\r\nContent-Length: 100\r\n", 90),
		VERDICT_TORN);
	assert_int_equal(judge(VERDICT_BEGIN, STORE_SIZE_UNKNOWN, 100,
				 "HTTP/1.1 206 x\r\nContent-Range: bytes 0-49/50\r\n", 50),
		VERDICT_GOOD);
	assert_int_equal(judge(VERDICT_BEGIN, STORE_SIZE_UNKNOWN, 100,
				 "HTTP/1.1 206 x\r\nContent-Range: bytes 0-49/60\r\n", 50),
		VERDICT_TORN);
	assert_int_equal(judge(VERDICT_BEGIN, STORE_SIZE_UNKNOWN, 100,
				 "HTTP/1.1 416 x\r\nContent-Range: bytes */0\r\n", 200),
		VERDICT_GOOD);
	assert_int_equal(judge(VERDICT_BEGIN, STORE_SIZE_UNKNOWN, 100,
				 "HTTP/1.1 200 x\r\nContent-Length: 60\r\n", 60),
		VERDICT_GOOD);
	assert_int_equal(judge(VERDICT_HEAD, STORE_SIZE_UNKNOWN, 0,
				 "HTTP/1.1 200 x\r\nContent-Length: 60\r\n", 0),
		VERDICT_GOOD);
}

/* ---- repetitions ---- */

static int64_t again(struct tries *tries, enum verdict_kind kind, struct retry_state state)
{
	const struct verdict verdict = {.kind = kind};

	return retry_after(tries, &verdict, &state);
}

static void test_full_jitter_doubles_up_to_20_seconds(void **state)
{
	struct tries most = {0}, least = {0};
	int64_t expected = 100;

	(void)state;
	for (int i = 0; i < 100; i++) {
		int64_t wait =
			again(&most, VERDICT_HEALS, (struct retry_state){.random = UINT32_MAX});

		assert_true(wait >= expected - 1 && wait <= expected);
		assert_int_equal(again(&least, VERDICT_HEALS, (struct retry_state){0}), 0);
		expected = expected * 2 < RETRY_MOST_MS ? expected * 2 : RETRY_MOST_MS;
	}
	assert_int_equal(
		again(&least, VERDICT_HEALS, (struct retry_state){.retry_after_s = 50}), 50000);
}

static void test_torn_answers_are_fetched_again_at_once_then_paced(void **state)
{
	const struct retry_state s = {.random = UINT32_MAX};
	struct tries tries = {0};

	(void)state;
	for (int i = 0; i < RETRY_TORN - 1; i++)
		assert_int_equal(again(&tries, VERDICT_TORN, s), 0);
	assert_true(again(&tries, VERDICT_TORN, s) > 0);
	again(&tries, VERDICT_HEALS, s);
	assert_int_equal(again(&tries, VERDICT_TORN, s), 0); /* in a row */
}

static void test_other_objects_are_tried_three_times(void **state)
{
	const struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries tries = {0}, unlisted = {0};

	(void)state;
	assert_in_range(again(&tries, VERDICT_OTHER, s), 3000, 5000);
	assert_in_range(again(&tries, VERDICT_OTHER, s), 3000, 5000);
	assert_int_equal(again(&tries, VERDICT_OTHER, s), RETRY_STOP);
	assert_int_equal(again(&unlisted, VERDICT_OTHER, (struct retry_state){0}), RETRY_STOP);
	assert_int_equal(again(&unlisted, VERDICT_FINAL, s), RETRY_STOP);
}

/* Each outage may begin with an answer that is not the object's. */
static void test_other_objects_are_counted_in_a_row(void **state)
{
	const struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries tries = {0};

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_in_range(again(&tries, VERDICT_OTHER, s), 3000, 5000);
		assert_in_range(again(&tries, VERDICT_OTHER, s), 3000, 5000);
		assert_true(again(&tries, i % 2 ? VERDICT_HEALS : VERDICT_TORN, s) >= 0);
	}
	again(&tries, VERDICT_OTHER, s);
	again(&tries, VERDICT_OTHER, s);
	assert_int_equal(again(&tries, VERDICT_OTHER, s), RETRY_STOP);
}

static void test_unknown_authorities(void **state)
{
	struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries first = {0}, later = {0};

	(void)state;
	assert_int_equal(again(&first, VERDICT_UNTRUSTED, s), RETRY_STOP);
	s.proven = true;
	for (int i = 0; i < 1000; i++)
		assert_true(again(&later, VERDICT_UNTRUSTED, s) >= 0);
}

static void test_denials(void **state)
{
	struct retry_state s = {.listed = true, .random = UINT32_MAX};
	struct tries first = {0}, rotated = {0}, one = {0};

	(void)state;
	assert_int_equal(again(&first, VERDICT_DENIED, s), RETRY_STOP);
	s.proven = true;
	for (int i = 0; i < 1000; i++)
		assert_true(again(&rotated, VERDICT_DENIED, s) >= 0);
	again(&one, VERDICT_DENIED, s);
	s.others = true;
	assert_true(again(&one, VERDICT_DENIED, s) > 0);
	assert_true(again(&one, VERDICT_DENIED, s) > 0);
	assert_int_equal(again(&one, VERDICT_DENIED, s), RETRY_STOP);
}

static void test_first_bytes_get_more_time_after_timeouts(void **state)
{
	static const int64_t expected[] = {2000, 4000, 8000, 16000, 30000, 30000};

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(retry_first_byte_ms(&(struct tries){.timeouts = i}), expected[i]);
	assert_int_equal(retry_first_byte_ms(&(struct tries){.timeouts = 1000000}), 30000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers_of_a_range),
		cmocka_unit_test(test_broken_headers_say_nothing),
		cmocka_unit_test(test_a_later_status_line_begins_anew),
		cmocka_unit_test(test_retry_after_in_seconds_or_as_a_date),
		cmocka_unit_test(test_endless_headers_end_the_get),
		cmocka_unit_test(test_code_of_an_error),
		cmocka_unit_test(test_judgement),
		cmocka_unit_test(test_denials_of_keys),
		cmocka_unit_test(test_judgement_of_whole_objects),
		cmocka_unit_test(test_full_jitter_doubles_up_to_20_seconds),
		cmocka_unit_test(test_torn_answers_are_fetched_again_at_once_then_paced),
		cmocka_unit_test(test_other_objects_are_tried_three_times),
		cmocka_unit_test(test_other_objects_are_counted_in_a_row),
		cmocka_unit_test(test_unknown_authorities),
		cmocka_unit_test(test_denials),
		cmocka_unit_test(test_first_bytes_get_more_time_after_timeouts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
