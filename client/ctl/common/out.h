/* Buffered output to stdout: aligned lines for people, or with --json one object per line. */
#ifndef TOKEND_CTL_OUT_H
#define TOKEND_CTL_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctl_out {
	size_t n;
	bool failed; /* writing to stdout failed, and a message was printed */
	char buffer[1 << 16];
};

void ctl_put(struct ctl_out *out, const char *text);
void ctl_put_number(struct ctl_out *out, uint64_t value);
/* A JSON string in quotes. Bytes that are not UTF-8 become \udcXX, as in Python's surrogateescape.
 */
void ctl_put_string(struct ctl_out *out, const char *text);
/* "key":value; the key is not escaped. */
void ctl_put_pair(struct ctl_out *out, const char *key, uint64_t value);
/* For people: padded to @width, control characters replaced. */
void ctl_put_left(struct ctl_out *out, const char *text, size_t width);
void ctl_put_right(struct ctl_out *out, uint64_t value, size_t width);
/* Flushes. Returns @status, or CTL_FAILED if writing failed. */
int ctl_finish(struct ctl_out *out, int status);
/* Characters of a UTF-8 text, digits of a number. */
size_t ctl_width(const char *text);
size_t ctl_digits(uint64_t value);

#endif
