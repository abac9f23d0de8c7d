#include "client/lib/handle.h"
#include "proto/phrases.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const enum fault_code code_of[] = {
	[-TOKEND_EARGUMENT] = FAULT_ARGUMENT,
	[-TOKEND_ECONNECT] = FAULT_IO,
	[-TOKEND_EREFUSED] = FAULT_ATTACH,
	[-TOKEND_EDATA] = FAULT_DATA,
	[-TOKEND_EHELD] = FAULT_ARGUMENT,
	[-TOKEND_EMEMORY] = FAULT_MEMORY,
	[-TOKEND_EPROTOCOL] = FAULT_PROTOCOL,
	[-TOKEND_EFORKED] = FAULT_ARGUMENT,
	[-TOKEND_EAGAIN] = FAULT_ARGUMENT,
	[-TOKEND_ESTART] = FAULT_ARGUMENT,
	[-TOKEND_EWAIT] = FAULT_IO,
};

_Static_assert(LIMIT_NAME_BYTES == 64, "PHRASE_NAME says so");

static int fail(struct tokend *t, enum tokend_error error, int number, const char *field,
	const char *format, va_list args)
{
	char text[LIMIT_TEXT_BYTES];

	vsnprintf(text, sizeof(text), format, args);
	fault_set(&t->fault, code_of[-error], field, "%s", text);
	t->fault.error = number;
	t->fault.passing = error == TOKEND_EAGAIN;
	error_line(&t->fault, t->line, sizeof(t->line));
	return error;
}

int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fail(t, error, 0, field, format, args);
	va_end(args);
	return error;
}

int handle_fail_errno(struct tokend *t, enum tokend_error error, int number, const char *field,
	const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fail(t, error, number, field, format, args);
	va_end(args);
	return error;
}

int handle_fault(struct tokend *t, const struct fault *fault)
{
	t->fault = *fault;
	return error_line(&t->fault, t->line, sizeof(t->line));
}

int handle_memory(struct tokend *t)
{
	struct fault fault;

	fault_memory(&fault);
	return handle_fault(t, &fault);
}

/* Names come from users: control characters are replaced, so that the message is one line. */
int handle_fail_name(struct tokend *t, const char *field, const char *name)
{
	char shown[LIMIT_NAME_BYTES + 1];
	size_t n = 0;

	for (; name[n] && n < LIMIT_NAME_BYTES; n++)
		shown[n] = (unsigned char)name[n] < ' ' || name[n] == 127 ? '?' : name[n];
	while (name[n] && n > 0 &&
		((unsigned char)name[n] & 0xc0) == 0x80) /* do not cut inside a UTF-8 character */
		n--;
	shown[n] = 0;
	return handle_fail(t, TOKEND_EARGUMENT, field, "'%s%s' is not " PHRASE_NAME, shown,
		name[n] ? "…" : "");
}

int handle_latch(struct tokend *t, int error)
{
	t->failed = error;
	t->failure = t->fault;
	return error;
}

int handle_broken(struct tokend *t, const char *invariant)
{
	return handle_latch(
		t, handle_fail(t, TOKEND_EPROTOCOL, "handle",
			   "bug in libtokend, please report it: %s does not hold", invariant));
}

int handle_error(const struct tokend *t)
{
	return error_of(t->fault.code);
}

int handle_failed(struct tokend *t)
{
	handle_fault(t, &t->failure);
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
	t->saving = 0;
}

static const char forked[] =
	"fork: this handle belongs to the parent process; attach again in the child, as another "
	"peer or rank (in a DataLoader: num_workers=0)";

const char *tokend_why(const struct tokend *t)
{
	return handle_forked(t) ? forked : t->line;
}

const char *tokend_field(const struct tokend *t)
{
	return handle_forked(t) ? "fork" : t->fault.field;
}

int tokend_errno(const struct tokend *t)
{
	return handle_forked(t) ? 0 : t->fault.error;
}
