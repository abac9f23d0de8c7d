/* Answers: their headers, what follows from them, and when a GET is repeated. */
#include "daemon/store/request.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- headers ---- */

/* The seconds since 1970 of an HTTP date, "Sun, 06 Nov 1994 08:49:37 GMT". 0: it is none. */
static int64_t read_date(const char *text)
{
	struct tm tm = {0};

	return strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm) && tm.tm_year >= 70 ? timegm(&tm)
										    : 0;
}

/* Reads digits, and moves @text after them. False: there are none, or the number is not below
 * 2^64 - 1. */
static bool read_number(const char **text, uint64_t *number)
{
	char *end;

	*number = 0;
	if (!isdigit((unsigned char)**text))
		return false;
	*number = strtoull(*text, &end, 10);
	*text = end;
	return *number < UINT64_MAX;
}

/* "bytes 0-99/1000", "bytes 0-99/" and '*', or of status 416, "bytes " '*' "/1000". */
static void read_range(struct answer *answer, const char *text)
{
	uint64_t from = 0, to = 0, size = STORE_SIZE_UNKNOWN;

	if (strncasecmp(text, "bytes", 5) != 0)
		return;
	text += 5 + strspn(text + 5, " =");
	bool none = *text == '*';

	if (none)
		text++;
	else if (!read_number(&text, &from) || *text++ != '-' || !read_number(&text, &to))
		return;
	if (*text++ != '/' || (strcmp(text, "*") != 0 && (!read_number(&text, &size) || *text)))
		return;
	answer->has_range = !none;
	answer->from = from;
	answer->to = to;
	answer->size = size;
}

bool answer_etag(const char *text, char etag[STORE_ETAG_BYTES])
{
	size_t n = strlen(text), quotes = n >= 2 && text[0] == '"' && text[n - 1] == '"';

	n -= 2 * quotes;
	if (n >= STORE_ETAG_BYTES)
		return false;
	memcpy(etag, text + quotes, n);
	etag[n] = 0;
	return true;
}

static void copy(char *to, size_t to_bytes, const char *from, size_t n)
{
	if (n >= to_bytes)
		n = to_bytes - 1;
	memcpy(to, from, n);
	to[n] = 0;
	fault_line(to);
}

static void read_header(struct answer *answer, const char *name, const char *value)
{
	const char *rest = value;

	if (strcasecmp(name, "content-range") == 0) {
		read_range(answer, value);
	} else if (strcasecmp(name, "content-length") == 0) {
		answer->has_length = read_number(&rest, &answer->length) && !*rest;
	} else if (strcasecmp(name, "transfer-encoding") == 0) {
		answer->chunked = true;
	} else if (strcasecmp(name, "etag") == 0) {
		answer->has_etag = answer_etag(value, answer->etag);
	} else if (strcasecmp(name, "content-encoding") == 0) {
		answer->encoded |= value[0] && strcasecmp(value, "identity") != 0 &&
				   strcasecmp(value, "aws-chunked") != 0;
	} else if (answer->status >= 400 && strcasecmp(name, "date") == 0) {
		answer->date = read_date(value);
	} else if (strcasecmp(name, "retry-after") == 0) { /* as a date, nobody sends it */
		read_number(&rest, &answer->retry_after_s);
		if (answer->retry_after_s > ANSWER_RETRY_S)
			answer->retry_after_s = ANSWER_RETRY_S;
	} else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
		copy(answer->region, sizeof(answer->region), value, strlen(value));
	}
}

/* "HTTP/1.1 206 Partial Content" */
static void read_status(struct answer *answer, const char *line)
{
	const char *space = strchr(line, ' ');

	*answer = (struct answer){.size = STORE_SIZE_UNKNOWN};
	answer->status = space ? atoi(space) : 0;
	if (answer->status < 100 || answer->status > 599)
		answer->status = 0;
}

void answer_header(struct answer *answer, const char *line, size_t n)
{
	char text[1024];

	if (n >= sizeof(text)) /* those that matter are shorter */
		return;
	while (n > 0 && isspace((unsigned char)line[n - 1]))
		n--;
	memcpy(text, line, n);
	text[n] = 0;
	char *colon = strchr(text, ':');

	if (strncasecmp(text, "HTTP/", 5) == 0) {
		read_status(answer, text);
	} else if (colon) {
		*colon = 0;
		read_header(answer, text, colon + 1 + strspn(colon + 1, " \t"));
	}
}

void answer_element(const char *body, size_t n, const char *name, char *to, size_t to_bytes)
{
	const char *from = memmem(body, n, name, strlen(name)), *end;

	to[0] = 0;
	if (!from)
		return;
	from += strlen(name);
	end = memchr(from, '<', n - (size_t)(from - body));
	if (end)
		copy(to, to_bytes, from, (size_t)(end - from));
}

void answer_error(struct answer *answer, const char *body, size_t n)
{
	answer_element(body, n, "<Code>", answer->code, sizeof(answer->code));
	if (!answer->region[0])
		answer_element(body, n, "<Region>", answer->region, sizeof(answer->region));
}

/* ---- verdicts ---- */

#define REMEDY_KEYS	"correct the credentials"
#define REMEDY_RENEW	"renew the credentials"
#define REMEDY_MANIFEST "restore the object, or write the manifest again: tokctl manifest"
#define REMEDY_RANGES	"the server must support ranges of objects"

/* An error by its code, or by its status where the code is NULL. The first match holds. */
static const struct rule {
	int status;
	const char *code;
	enum verdict_kind kind;
	const char *remedy;
} rules[] = {
	{0, "SlowDown", VERDICT_HEALS, ""},
	{0, "RequestTimeout", VERDICT_HEALS, ""},
	{0, "RequestTimeTooSkewed", VERDICT_CLOCK, "set this machine's clock"},
	{0, "ExpiredToken", VERDICT_EXPIRED, REMEDY_RENEW},
	{0, "ExpiredTokenException", VERDICT_EXPIRED, REMEDY_RENEW},
	{0, "InvalidToken", VERDICT_EXPIRED, REMEDY_RENEW},
	{0, "TokenRefreshRequired", VERDICT_EXPIRED, REMEDY_RENEW},
	{0, "InvalidObjectState", VERDICT_FINAL,
		"the object is archived: restore it to a class that can be read"},
	{0, "NoSuchBucket", VERDICT_FINAL, "correct the bucket's name"},
	{0, "AuthorizationHeaderMalformed", VERDICT_FINAL,
		"set `region:` of the store to the bucket's"},
	{0, "KMS.DisabledException", VERDICT_FINAL, "enable the object's key"},
	{0, "InvalidAccessKeyId", VERDICT_DENIED, REMEDY_KEYS},
	{0, "SignatureDoesNotMatch", VERDICT_DENIED, REMEDY_KEYS},
	{0, "AuthenticationFailed", VERDICT_DENIED, REMEDY_KEYS}, /* Azure, of a query */
	{401, NULL, VERDICT_EXPIRED, REMEDY_RENEW},
	{403, NULL, VERDICT_DENIED, "give these credentials the right to read it"},
	{404, NULL, VERDICT_OTHER, REMEDY_MANIFEST},
	{405, NULL, VERDICT_FINAL, REMEDY_MANIFEST},
	{408, NULL, VERDICT_HEALS, ""},
	{412, NULL, VERDICT_OTHER, REMEDY_MANIFEST},
	{416, NULL, VERDICT_OTHER, REMEDY_MANIFEST},
	{429, NULL, VERDICT_HEALS, ""},
	{501, NULL, VERDICT_FINAL, REMEDY_RANGES},
	{505, NULL, VERDICT_FINAL, "the server must support HTTP/1.1"},
};

__attribute__((format(printf, 4, 5))) static void judge(
	struct verdict *v, enum verdict_kind kind, const char *remedy, const char *format, ...)
{
	va_list arguments;

	*v = (struct verdict){.kind = kind, .remedy = remedy};
	va_start(arguments, format);
	vsnprintf(v->reason, sizeof(v->reason), format, arguments);
	va_end(arguments);
}

static void judge_error(const struct answer *a, struct verdict *v)
{
	const struct rule *r = rules, *end = rules + sizeof(rules) / sizeof(rules[0]);
	bool elsewhere = a->status / 100 == 3;

	while (r < end && !(r->code ? strcmp(r->code, a->code) == 0 : r->status == a->status))
		r++;
	judge(v,
		r < end		   ? r->kind
		: a->status >= 500 ? VERDICT_HEALS
				   : VERDICT_FINAL,
		r < end	    ? r->remedy
		: elsewhere ? "set `region:` or `endpoint:` of the store to the bucket's"
			    : "",
		"%d%s%s%s%s", a->status, a->code[0] ? " " : "", a->code,
		elsewhere && a->region[0] ? ", the bucket is in region " : "",
		elsewhere ? a->region : "");
	v->overload = v->kind == VERDICT_HEALS &&
		      (a->status == 429 || a->status == 503 || strcmp(a->code, "SlowDown") == 0);
	v->keys = v->kind == VERDICT_DENIED && r->code;
}

/* Whether the answer is about the object of the manifest. */
static bool judge_object(
	const struct verdict_asked *asked, const struct answer *a, uint64_t size, struct verdict *v)
{
	if (size != STORE_SIZE_UNKNOWN && size != asked->size)
		judge(v, VERDICT_OTHER, REMEDY_MANIFEST,
			"the object has %" PRIu64 " bytes, in the manifest %" PRIu64, size,
			asked->size);
	else if (asked->etag && !a->has_etag && a->status != 416)
		judge(v, VERDICT_TORN, "", "no ETag, so it may be another object");
	else if (asked->etag && a->has_etag && strcmp(a->etag, asked->etag) != 0)
		judge(v, VERDICT_OTHER, REMEDY_MANIFEST,
			"the object's ETag is \"%.100s\", in the manifest \"%.100s\"", a->etag,
			asked->etag);
	else
		return true;
	return false;
}

/* Status 206. */
static void judge_part(const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	if (asked->want != VERDICT_RANGE || !a->has_range)
		judge(v, VERDICT_TORN, "", "206 without the range");
	else if (!judge_object(asked, a, a->size, v))
		return;
	else if (a->from != asked->at || a->to != asked->at + asked->n - 1)
		judge(v, VERDICT_TORN, "", "another range than asked for");
}

/* Status 200: the whole object, or an error page. */
static void judge_whole(
	const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	uint64_t size = a->has_length ? a->length : STORE_SIZE_UNKNOWN;

	if (asked->want == VERDICT_WHOLE && a->has_length && size > asked->n)
		judge(v, VERDICT_FINAL, "", "%" PRIu64 " bytes, at most %zu are allowed", size,
			asked->n);
	if (asked->want != VERDICT_RANGE)
		return;
	if (asked->at == 0 && asked->n == asked->size && (size == asked->size || !a->has_length))
		judge_object(asked, a, size, v);
	else if (size == asked->size || (size > asked->n && asked->etag && a->has_etag))
		judge(v, VERDICT_FINAL, REMEDY_RANGES, "200 with the whole object, not the range");
	else
		judge(v, VERDICT_TORN, "", "200 instead of the range");
}

void verdict_headers(const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	*v = (struct verdict){.kind = VERDICT_GOOD, .remedy = ""};
	if (a->status == 0) {
		judge(v, VERDICT_HEALS, "", "no HTTP answer");
	} else if (a->status != 200 && a->status != 206) {
		judge_error(a, v);
		if (a->status == 416 && asked->want == VERDICT_RANGE)
			judge_object(asked, a, a->size, v);
	} else if (a->encoded) {
		judge(v, VERDICT_FINAL, "upload the object again without Content-Encoding",
			"the object has a Content-Encoding");
	} else if (a->status == 206) {
		judge_part(asked, a, v);
	} else {
		judge_whole(asked, a, v);
	}
	fault_line(v->reason); /* an ETag may contain anything */
}

void verdict_answer(
	const struct verdict_asked *asked, const struct answer *a, uint64_t n, struct verdict *v)
{
	uint64_t right = asked->want == VERDICT_RANGE ? asked->n : a->has_length ? a->length : n;

	verdict_headers(asked, a, v);
	if (v->kind != VERDICT_GOOD || asked->want == VERDICT_HEAD)
		return;
	if (asked->want == VERDICT_WHOLE && n > asked->n)
		judge(v, VERDICT_FINAL, "", "more than %zu bytes", asked->n);
	else if (asked->want == VERDICT_WHOLE && !a->has_length && !a->chunked)
		judge(v, VERDICT_TORN, "", "without a length, so it may be cut off");
	else if (n != right)
		judge(v, VERDICT_TORN, "", "%" PRIu64 " bytes instead of %" PRIu64, n, right);
}
