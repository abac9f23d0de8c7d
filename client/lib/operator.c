/*
 * An operator's requests in a session: fetching one, carrying out a mix or a skip, answering.
 */
#include "client/lib/handle.h"
#include "client/lib/mix.h"
#include "client/lib/seek.h"
#include "client/lib/undo.h"
#include "proto/phrases.h"

#include <inttypes.h>
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
	const struct wire *w = &t->packet->wire;
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

/* The lines "KEY VALUE" of a request. */
struct arguments {
	bool has_at, has_samples;
	uint64_t at, samples;
	uint32_t weights;
	const char **name;
	double *weight;
	char *text; /* the lines, cut into keys and values */
};

static int reject(struct tokend *t, const char *key, const char *value, const char *right)
{
	return handle_fail(t, TOKEND_EARGUMENT, key, "'%.200s' %s", value, right);
}

/* "0.5 web". @plain: the C locale, for the decimal point. */
static int read_weight(struct tokend *t, struct arguments *o, char *value, locale_t plain)
{
	char *space = strchr(value, ' '), *end;

	if (!space || !wire_label_ok(space + 1))
		return reject(
			t, "weight", value, "is not a number, a space and the name of a dataset");
	*space = 0;
	o->weight[o->weights] = strtod_l(value, &end, plain);
	if (*end || end == value || strspn(value, "0123456789.eE+-") != strlen(value))
		return reject(t, "weight", value, "is not a decimal number");
	o->name[o->weights++] = space + 1;
	return 0;
}

/* Reads a line. Unknown keys, from a later version, are rejected: they cannot be carried out. */
static int read_line(
	struct tokend *t, struct arguments *o, const char *key, char *value, locale_t plain)
{
	const struct {
		const char *key;
		uint64_t *to;
		bool *has;
	} numbers[] = {{"at", &o->at, &o->has_at}, {"samples", &o->samples, &o->has_samples}};

	if (strcmp(key, "weight") == 0)
		return read_weight(t, o, value, plain);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (strcmp(key, numbers[i].key) != 0)
			continue;
		if (!wire_digits(value, numbers[i].to))
			return reject(t, key, value, "is not " PHRASE_UINT64);
		*numbers[i].has = true;
		return 0;
	}
	return reject(t, "request", key, "is unknown; is tokctl newer than this client?");
}

static int read_lines(struct tokend *t, struct arguments *o, locale_t plain)
{
	for (char *line = o->text, *next; *line; line = next) {
		char *end = strchr(line, '\n'), *space;

		if (end)
			*end = 0;
		next = end ? end + 1 : line + strlen(line);
		space = strchr(line, ' ');
		if (!space)
			return reject(t, "request", line, "is not a line \"KEY VALUE\"");
		*space = 0;

		int r = read_line(t, o, line, space + 1, plain);

		if (r < 0)
			return r; /* NOLINT(clang-analyzer-unix.Malloc): free_arguments() frees it
				   */
	}
	return 0;
}

/* The caller calls free_arguments(), also on failure. */
static int read_arguments(struct tokend *t, struct arguments *o, const char *args)
{
	size_t lines = 1;

	for (const char *p = args; *p; p++)
		lines += *p == '\n';
	*o = (struct arguments){
		.text = strdup(args),
		.name = malloc(lines * sizeof(*o->name)),
		.weight = malloc(lines * sizeof(*o->weight)),
	};

	locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
	int r = o->text && o->name && o->weight && plain ? read_lines(t, o, plain)
							 : handle_memory(t);

	if (plain)
		freelocale(plain);
	return r;
}

static void free_arguments(struct arguments *o)
{
	free(o->text);
	free(o->name);
	free(o->weight);
}

static int apply_mix(struct tokend *t, const struct arguments *o, uint64_t *acts_from)
{
	if (o->weights == 0)
		return handle_fail(
			t, TOKEND_EARGUMENT, "mix", "no dataset is named; " PHRASE_WEIGHTS);
	if (cursor_end(&t->origin) != UINT64_MAX)
		return handle_fail(t, TOKEND_EARGUMENT, "mix",
			PHRASE_FINITE "; edit its cursor, or use an endless stream", t->stream);
	return mix_change(
		t, o->name, o->weight, o->weights, o->has_at ? o->at : TOKEND_SOON, acts_from);
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
	uint64_t from = t->taken, at = from;
	struct arguments o = {0};
	int r = handle_usable(t);

	if (r == 0)
		r = check_kind(t, kind);
	if (r == 0)
		r = read_arguments(t, &o, args);
	if (r == 0)
		r = undo_prepare(t);
	if (r == 0 && strcmp(kind, "mix") == 0)
		r = apply_mix(t, &o, &at);
	else if (r == 0)
		r = o.has_samples ? seek_skip(t, o.samples, &at)
				  : handle_fail(t, TOKEND_EARGUMENT, "skip",
					    "samples is missing; set it to the number to skip");
	free_arguments(&o);
	if (r < 0) {
		undo_forget(t);
		return r;
	}
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
	if (outcome != TOKEND_NOTED) {
		t->applied.any = false;
		undo_forget(t);
	}
	return send_answer(t, &note);
}
