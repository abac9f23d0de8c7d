#include "client/lib/handle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int handle_fail(struct tokend *t, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(t->why, sizeof(t->why), format, args);
	va_end(args);
	return code;
}

static enum tokend_error error_of(enum fault_code code)
{
	switch (code) {
	case FAULT_MEMORY:
	case FAULT_DESCRIPTORS:
		return TOKEND_EMEMORY;
	case FAULT_DATA:
	case FAULT_CHANGED:
		return TOKEND_EDATA;
	case FAULT_PROTOCOL:
		return TOKEND_EPROTOCOL;
	case FAULT_PERMISSION:
		return TOKEND_EREFUSED;
	default:
		return TOKEND_EARGUMENT;
	}
}

int handle_fault(struct tokend *t, const struct fault *fault)
{
	return handle_fail(t, error_of(fault->code), "%s: %s", fault->field, fault->text);
}

int handle_memory(struct tokend *t)
{
	return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
}

/* Names are a user's, and the line is to be one line. */
int handle_fail_name(struct tokend *t, const char *what, const char *name)
{
	char shown[LIMIT_NAME_BYTES + 1];
	size_t n = 0;

	for (; name[n] && n < LIMIT_NAME_BYTES; n++)
		shown[n] = (unsigned char)name[n] < ' ' || name[n] == 127 ? '?' : name[n];
	while (name[n] && n > 0 &&
		((unsigned char)name[n] & 0xc0) == 0x80) /* not in the middle of one */
		n--;
	shown[n] = 0;
	return handle_fail(t, TOKEND_EARGUMENT,
		"%s: '%s%s', must be a name of 1 to %d bytes, without '/', control characters or a "
		"leading "
		"'.'",
		what, shown, name[n] ? "…" : "", LIMIT_NAME_BYTES);
}

int handle_latch(struct tokend *t, int code)
{
	t->failed = code;
	memcpy(t->failed_why, t->why, sizeof(t->why));
	return code;
}

int handle_failed(struct tokend *t)
{
	memcpy(t->why, t->failed_why, sizeof(t->why));
	return t->failed;
}

int handle_usable(const struct tokend *t)
{
	return handle_forked(t) ? TOKEND_EFORKED : 0;
}

void handle_lose(struct tokend *t)
{
	if (t->fd >= 0)
		close(t->fd);
	t->fd = -1;
	t->late = 0;
}

const char *tokend_why(const struct tokend *t)
{
	return handle_forked(t) ? "fork: this handle belongs to the process that attached: attach "
				  "anew in the child, with another peer or rank; in a DataLoader's "
				  "worker: num_workers=0"
				: t->why;
}
