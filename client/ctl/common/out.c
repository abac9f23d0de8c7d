/* stdout is written in pieces of 64 KiB, because a plan may have millions of lines. */
#include "client/ctl/common/out.h"

#include "client/ctl/common/error.h"
#include "proto/text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void flush(struct ctl_out *out)
{
	for (size_t at = 0; at < out->n && !out->failed;) {
		ssize_t n = write(STDOUT_FILENO, out->buffer + at, out->n - at);

		if (n > 0)
			at += (size_t)n;
		else if (errno != EINTR) {
			ctl_fail("stdout: %s", strerror(errno));
			out->failed = true;
		}
	}
	out->n = 0;
}

static void put(struct ctl_out *out, const char *bytes, size_t n)
{
	while (n > 0) {
		if (out->n == sizeof(out->buffer))
			flush(out);
		size_t room = sizeof(out->buffer) - out->n, take = n < room ? n : room;

		memcpy(out->buffer + out->n, bytes, take);
		out->n += take;
		bytes += take;
		n -= take;
	}
}

void ctl_put(struct ctl_out *out, const char *text)
{
	put(out, text, strlen(text));
}

static void put_spaces(struct ctl_out *out, size_t n)
{
	for (; n > 0; n--)
		put(out, " ", 1);
}

void ctl_put_number(struct ctl_out *out, uint64_t value)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value > 0);
	put(out, digits + at, sizeof(digits) - at);
}

void ctl_put_pair(struct ctl_out *out, const char *key, uint64_t value)
{
	put(out, "\"", 1);
	ctl_put(out, key);
	put(out, "\":", 2);
	ctl_put_number(out, value);
}

static void put_escape(struct ctl_out *out, unsigned code)
{
	static const char hex[] = "0123456789abcdef";
	const char text[6] = {'\\', 'u', hex[code >> 12], hex[code >> 8 & 15], hex[code >> 4 & 15],
		hex[code & 15]};

	put(out, text, sizeof(text));
}

void ctl_put_string(struct ctl_out *out, const char *text)
{
	const unsigned char *p = (const unsigned char *)text, *from = p;

	put(out, "\"", 1);
	while (*p) {
		size_t n = text_character((const char *)p);
		bool control = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 to U+009F */

		if (n > 0 && *p != '"' && *p != '\\') {
			p += n;
			continue;
		}
		put(out, (const char *)from, (size_t)(p - from));
		/* A byte that is not UTF-8 becomes Python's surrogateescape. */
		p += control;
		put_escape(out, control || *p < 0x80 ? *p : 0xdc00 + *p);
		from = ++p;
	}
	put(out, (const char *)from, (size_t)(p - from));
	put(out, "\"", 1);
}

size_t ctl_width(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

size_t ctl_digits(uint64_t value)
{
	size_t digits = 1;

	for (; value >= 10; value /= 10)
		digits++;
	return digits;
}

void ctl_put_left(struct ctl_out *out, const char *text, size_t width)
{
	size_t shown = 0;

	for (size_t n; *text; text += n ? n : 1, shown++) {
		n = text_character(text);
		put(out, n ? text : "?", n ? n : 1);
	}
	put_spaces(out, shown < width ? width - shown : 0);
}

void ctl_put_right(struct ctl_out *out, uint64_t value, size_t width)
{
	size_t shown = ctl_digits(value);

	put_spaces(out, shown < width ? width - shown : 0);
	ctl_put_number(out, value);
}

int ctl_finish(struct ctl_out *out, int status)
{
	flush(out);
	return out->failed ? CTL_FAILED : status;
}
