/*
 * Output to stdout: facts, one a line, aligned for people or (--json) one object a line.
 */
#ifndef TOKEND_CTL_OUT_H
#define TOKEND_CTL_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctl_out {
	size_t n;
	bool failed; /* stdout did not take all; a line on stderr has said so */
	char buffer[1 << 16];
};

void ctl_put(struct ctl_out *out, const char *text);
void ctl_put_number(struct ctl_out *out, uint64_t value);
/* A JSON string with its quotes; bytes that are not UTF-8 become \udcXX (Python's surrogateescape).
 */
void ctl_put_string(struct ctl_out *out, const char *text);
/* "key":value; the key is written as it is. */
void ctl_put_pair(struct ctl_out *out, const char *key, uint64_t value);
/* For people: padded to @width, control characters replaced. */
void ctl_put_left(struct ctl_out *out, const char *text, size_t width);
void ctl_put_right(struct ctl_out *out, uint64_t value, size_t width);
/* Writes what is left. Returns @status, or CTL_FAILED if stdout did not take all of it. */
int ctl_finish(struct ctl_out *out, int status);
/* Characters of a UTF-8 text, digits of a number. */
size_t ctl_width(const char *text);
size_t ctl_digits(uint64_t value);

#endif
