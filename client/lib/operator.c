/*
 * An operator's requests in a session: fetching one, carrying out a mix or a skip, answering.
 */
#include "client/lib/handle.h"
#include "proto/phrases.h"

#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TOKEND_ARGS_BYTES == WIRE_ARGS_BYTES, "part of the public interface");
_Static_assert((int)TOKEND_NOTED == (int)WIRE_NOTED && (int)TOKEND_DONE == (int)WIRE_DONE &&
		       (int)TOKEND_FAILED == (int)WIRE_FAILED,
	"sent without conversion");

enum { SEND_MS = 1000 }; /* limit of sending an answer */

/* ---- fetching ---- */

uint64_t tokend_request_number(const struct tokend *t)
{
	/* The request was lost with the daemon. */
	if (handle_forked(t) || t->fd < 0)
		return 0;
	return atomic_load_explicit(&t->mapping->ring.header->request, memory_order_acquire);
}

int tokend_request(struct tokend *t, struct tokend_request *request)
{
	const struct wire pending = {.op = WIRE_PENDING};
	const struct wire *w = &t->packet.wire;
	int r = handle_usable(t);

	memset(request, 0, sizeof(*request));
	if (r == 0)
		r = query(t, &pending, WIRE_REQUEST);
	if (r < 0)
		return r;
	if (!wire_text(w, WIRE_KIND, request->kind, sizeof(request->kind)) ||
		!wire_text(w, WIRE_ARGS, request->args, sizeof(request->args)))
		return handle_fail(t, TOKEND_EPROTOCOL, "request",
			"the daemon sent one that is too long; is it newer than this client?");
	request->number = wire_number(w, WIRE_NUMBER);
	return 0;
}

/* ---- carrying out ---- */

/* An edit that the lines "KEY VALUE" of a request describe. */
struct lines {
	struct cursor_edit edit;
	bool has_number;
	const char **name;
	double *weight;
	char *text; /* the lines, cut into keys and values */
};

static int reject(struct tokend *t, const char *key, const char *value, const char *right)
{
	return handle_fail(t, TOKEND_EARGUMENT, key, "'%.200s' %s", value, right);
}

/* "0.5 web". @plain: the C locale, for the decimal point. */
static int read_weight(struct tokend *t, struct lines *l, char *value, locale_t plain)
{
	char *space = strchr(value, ' '), *end;

	if (!space || !wire_label_ok(space + 1))
		return reject(
			t, "weight", value, "is not a number, a space and the name of a dataset");
	*space = 0;
	l->weight[l->edit.names] = strtod_l(value, &end, plain);
	if (*end || end == value || strspn(value, "0123456789.eE+-") != strlen(value))
		return reject(t, "weight", value, "is not a decimal number");
	l->name[l->edit.names++] = space + 1;
	return 0;
}

/* Reads a line. Unknown keys, from a later version, are rejected: they cannot be carried out. */
static int read_line(struct tokend *t, struct lines *l, char *line, locale_t plain)
{
	char *space = strchr(line, ' '), *value;

	if (!space)
		return reject(t, "request", line, "is not a line \"KEY VALUE\"");
	*space = 0;
	value = space + 1;
	if (strcmp(line, "weight") == 0)
		return read_weight(t, l, value, plain);
	if (strcmp(line, l->edit.kind == CURSOR_MIX ? "at" : "samples") != 0)
		return reject(t, "request", line, "is unknown; is tokctl newer than this client?");
	l->has_number = true;
	return wire_digits(value, &l->edit.number)
		       ? 0
		       : reject(t, line, value, "is not " PHRASE_UINT64);
}

/* The caller calls free_lines(), also on failure. */
static int read_lines(struct tokend *t, struct lines *l, const char *args)
{
	size_t most = 1;
	int r = 0;

	for (const char *p = args; *p; p++)
		most += *p == '\n';
	l->text = strdup(args);
	l->name = malloc(most * sizeof(*l->name));
	l->weight = malloc(most * sizeof(*l->weight));

	locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);

	if (!l->text || !l->name || !l->weight || !plain)
		r = handle_memory(t);
	for (char *line = l->text, *next; r == 0 && *line; line = next) {
		next = strchrnul(line, '\n');
		if (*next)
			*next++ = 0;
		r = read_line(t, l, line, plain);
	}
	l->edit.name = l->name;
	l->edit.weight = l->weight;
	if (plain)
		freelocale(plain);
	return r;
}

static void free_lines(struct lines *l)
{
	free(l->text);
	free(l->name);
	free(l->weight);
}

static int check_lines(struct tokend *t, const struct lines *l)
{
	if (l->edit.kind == CURSOR_SKIP)
		return l->has_number ? 0
				     : handle_fail(t, TOKEND_EARGUMENT, "skip",
					       "samples is missing; set it to the number to skip");
	if (l->edit.names == 0)
		return handle_fail(
			t, TOKEND_EARGUMENT, "mix", "no dataset is named; " PHRASE_WEIGHTS);
	if (cursor_end(&t->origin) != UINT64_MAX)
		return handle_fail(t, TOKEND_EARGUMENT, "mix",
			"stream %s is finite: its mix cannot change while it runs; edit its "
			"cursor, or use an endless stream",
			t->stream);
	return 0;
}

/* Only the trainer can save: a loop that has this library carry out all requests does not. */
static int check_kind(struct tokend *t, const char *kind)
{
	if (strcmp(kind, "mix") == 0 || strcmp(kind, "skip") == 0)
		return 0;
	if (strcmp(kind, "checkpoint") == 0 || strcmp(kind, "drain") == 0 ||
		strcmp(kind, "rescale") == 0)
		return handle_fail(t, TOKEND_EARGUMENT, "request",
			"%s is not handled: the training loop does not save for it", kind);
	return handle_fail(t, TOKEND_EARGUMENT, "request",
		"'%.60s' is unknown; is tokctl newer than this client?", kind);
}

int tokend_obey(struct tokend *t, const char *kind, const char *args, uint64_t *acts_from)
{
	struct lines l = {.edit = {.kind = strcmp(kind, "mix") == 0 ? CURSOR_MIX : CURSOR_SKIP,
				  .number = CURSOR_SOON}};
	uint64_t from = t->taken, at = from;
	int r = handle_usable(t);

	if (r == 0)
		r = check_kind(t, kind);
	if (r == 0)
		r = read_lines(t, &l, args);
	if (r == 0)
		r = check_lines(t, &l);
	if (r == 0)
		r = undo_prepare(t);
	if (r == 0) {
		r = edit_session(t, &l.edit, &at);
		if (r < 0)
			undo_forget(t);
	}
	free_lines(&l);
	if (r < 0)
		return r;
	t->applied = (struct applied){.any = true, .from = from, .acts_from = at};
	if (acts_from)
		*acts_from = at;
	return 0;
}

/* ---- answering ---- */

/* Sends an answer. Does not look for a lost daemon: another one would not know the request. */
static int send_answer(struct tokend *t, const struct wire *note)
{
	struct fault fault;

	for (;;) {
		if (t->fd >= 0 && link_send(t->fd, note, t->out, &fault))
			return 0;
		if (t->fd >= 0 && fault.code == FAULT_ARGUMENT)
			return handle_fault(t, &fault);
		if (t->fd < 0 || !fault.passing) {
			handle_lose(t);
			return handle_fail(t, TOKEND_ECONNECT, "request",
				"the daemon at %s was lost, and the request with it", t->socket);
		}

		int r = wait_ready(t, t->fd, POLLOUT, wait_now() + SEND_MS * INT64_C(1000000));

		if (r < 0)
			return r;
		if (r == 0)
			return handle_fail(t, TOKEND_ECONNECT, "request",
				"the daemon at %s does not read its messages", t->socket);
	}
}

/* Bytes of @text that fit into an answer, not cut inside a UTF-8 character. */
static size_t answer_bytes(const char *text)
{
	size_t n = strnlen(text, LIMIT_TEXT_BYTES);

	if (n < LIMIT_TEXT_BYTES)
		return n;
	for (n--; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
		n--;
	return n;
}

int tokend_answer(struct tokend *t, uint64_t number, enum tokend_outcome outcome, const char *text)
{
	struct wire note = {.op = WIRE_ANSWER};
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (outcome < TOKEND_NOTED || outcome > TOKEND_FAILED)
		return handle_fail(t, TOKEND_EARGUMENT, "outcome",
			"%d; must be TOKEND_NOTED, DONE or FAILED", (int)outcome);
	wire_set(&note, WIRE_NUMBER, number);
	wire_set(&note, WIRE_OUTCOME, outcome);
	wire_set_bytes(&note, WIRE_TEXT, text, answer_bytes(text));
	if (outcome == TOKEND_DONE) {
		int64_t n = tokend_cursor(t, t->saved, LIMIT_CURSOR_BYTES);

		if (n < 0)
			return (int)n;
		wire_set_bytes(&note, WIRE_CURSOR, t->saved, (size_t)n);
		if (t->applied.any) {
			wire_set(&note, WIRE_FROM, t->applied.from);
			wire_set(&note, WIRE_ACTS_FROM, t->applied.acts_from);
		}
	}
	r = send_answer(t, &note);
	if (outcome != TOKEND_NOTED && r != TOKEND_EAGAIN) {
		t->applied.any = false;
		undo_forget(t);
	}
	return r;
}
