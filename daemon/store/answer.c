#include "daemon/store/request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The seconds since 1970 of an HTTP date, "Sun, 06 Nov 1994 08:49:37 GMT". 0: it is none. */
static int64_t read_date(const char *text)
{
	struct tm tm = {0};

	return strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm) && tm.tm_year >= 70 ? timegm(&tm)
										    : 0;
}

/* Decimal digits, then an end. Returns the end, NULL: no number below 2^64. */
static const char *read_number(const char *text, uint64_t *number)
{
	*number = 0;
	if (!isdigit((unsigned char)*text))
		return NULL;
	for (; isdigit((unsigned char)*text); text++)
		if (__builtin_mul_overflow(*number, 10, number) ||
			__builtin_add_overflow(*number, (uint64_t)(*text - '0'), number))
			return NULL;
	return text;
}

/* "bytes 0-99/1000", "bytes 0-99/" and '*', or of status 416, "bytes " '*' "/1000". */
static void read_range(struct answer *answer, const char *text)
{
	uint64_t from = 0, to = 0, size = STORE_SIZE_UNKNOWN;
	bool has_range = false;

	if (strncasecmp(text, "bytes", 5) != 0)
		return;
	text += 5;
	text += strspn(text, " =");
	if (*text == '*') {
		text++;
	} else {
		text = read_number(text, &from);
		if (!text || *text != '-')
			return;
		text = read_number(text + 1, &to);
		if (!text)
			return;
		has_range = true;
	}
	if (*text != '/' || from > to)
		return;
	if (text[1] != '*' && !read_number(text + 1, &size))
		return;
	answer->has_range = has_range;
	answer->from = from;
	answer->to = to;
	answer->size = size;
}

static void read_etag(struct answer *answer, const char *text)
{
	size_t n = strlen(text);

	if (n >= 2 && text[0] == '"' && text[n - 1] == '"') {
		text++;
		n -= 2;
	}
	if (n >= sizeof(answer->etag))
		return;
	memcpy(answer->etag, text, n);
	answer->etag[n] = 0;
	answer->has_etag = true;
}

static void wait_seconds(struct answer *answer, uint64_t seconds)
{
	answer->retry_after_s = seconds < ANSWER_RETRY_S ? (unsigned)seconds : ANSWER_RETRY_S;
}

/* A Retry-After that is a date counts from the answer's own, which may follow it. */
static void wait_until(struct answer *answer)
{
	if (answer->date && answer->retry_at > answer->date)
		wait_seconds(answer, (uint64_t)(answer->retry_at - answer->date));
}

static void read_retry_after(struct answer *answer, const char *text)
{
	uint64_t seconds;

	if (read_number(text, &seconds)) {
		wait_seconds(answer, seconds);
		return;
	}
	answer->retry_at = read_date(text);
	wait_until(answer);
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
	const char *end;

	if (strcasecmp(name, "content-range") == 0) {
		read_range(answer, value);
	} else if (strcasecmp(name, "content-length") == 0) {
		end = read_number(value, &answer->length);
		answer->has_length = end && !*end;
	} else if (strcasecmp(name, "etag") == 0) {
		read_etag(answer, value);
	} else if (strcasecmp(name, "content-encoding") == 0) {
		answer->encoded = value[0] && strcasecmp(value, "identity") != 0 &&
				  strcasecmp(value, "aws-chunked") != 0;
	} else if (answer->status >= 400 && strcasecmp(name, "date") == 0) {
		answer->date = read_date(value);
		wait_until(answer);
	} else if (strcasecmp(name, "retry-after") == 0) {
		read_retry_after(answer, value);
	} else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
		copy(answer->region, sizeof(answer->region), value, strlen(value));
	} else if (strcasecmp(name, "x-amz-delete-marker") == 0) {
		answer->deleted = strcasecmp(value, "true") == 0;
	}
}

/* "HTTP/1.1 206 Partial Content" */
static void read_status(struct answer *answer, const char *line)
{
	const char *space = strchr(line, ' ');
	size_t bytes = answer->header_bytes;

	*answer = (struct answer){.size = STORE_SIZE_UNKNOWN, .header_bytes = bytes};
	answer->status = space ? atoi(space) : 0;
	if (answer->status < 100 || answer->status > 599)
		answer->status = 0;
}

bool answer_header(struct answer *answer, const char *line, size_t n)
{
	char text[1024];

	answer->header_bytes += n;
	if (answer->header_bytes > ANSWER_HEADER_BYTES) {
		answer->too_long = true;
		return false;
	}
	if (n >= sizeof(text)) /* none of those that matter are so long */
		return true;
	while (n > 0 && isspace((unsigned char)line[n - 1]))
		n--;
	memcpy(text, line, n);
	text[n] = 0;
	if (strncasecmp(text, "HTTP/", 5) == 0) {
		read_status(answer, text);
		return true;
	}
	char *colon = strchr(text, ':');

	if (!colon)
		return true;
	*colon = 0;
	read_header(answer, text, colon + 1 + strspn(colon + 1, " \t"));
	return true;
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
	if (!answer->code[0])
		answer_element(body, n, "<Code>", answer->code, sizeof(answer->code));
	if (!answer->region[0])
		answer_element(body, n, "<Region>", answer->region, sizeof(answer->region));
}
