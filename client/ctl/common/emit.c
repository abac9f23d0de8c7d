#include "client/ctl/common/ctl.h"
#include "proto/text.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>

enum { GAP = 2 /* spaces between columns */ };

/* The kinds of held texts: cells, text that follows them, and the end of a line. */
enum { LEFT = 'l', RIGHT = 'r', TEXT = '+', END = '\n' };

static FILE *to(const struct emit *e)
{
	return e->to ? e->to : stdout;
}

static void put(struct emit *e, const char *bytes, size_t n)
{
	if (fwrite_unlocked(bytes, 1, n, to(e)) < n && !e->error)
		e->error = errno;
}

/* Writes the digits to the end of @digits. Returns where they begin. */
static const char *write_number(char digits[21], uint64_t value)
{
	char *at = digits + 20;

	*at = 0;
	do
		*--at = (char)('0' + value % 10);
	while ((value /= 10) > 0);
	return at;
}

/* ---- text ---- */

static size_t width_of(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

/* @text is clean. */
static void print(struct emit *e, char what, const char *text)
{
	size_t shown = width_of(text), width = 0;
	bool cell = what == LEFT || what == RIGHT;

	if (cell) {
		width = e->width[e->printed++];
		e->owed += what == RIGHT && shown < width ? width - shown : 0;
	}
	if (*text) {
		for (; cell && e->owed > 0; e->owed--)
			put(e, " ", 1);
		put(e, text, strlen(text));
		e->owed = 0;
	}
	if (cell)
		e->owed += GAP + (what == LEFT && shown < width ? width - shown : 0);
	if (what == END) {
		put(e, "\n", 1);
		e->printed = 0;
		e->owed = 0;
	}
}

/* Prints the heads, once, and what is held. */
static void lay_out(struct emit *e)
{
	bool heads = false;

	for (unsigned i = 0; i < e->columns && !e->headed; i++)
		heads |= e->head[i][0] != 0;
	for (unsigned i = 0; i < e->columns && heads; i++)
		print(e, e->right[i] ? RIGHT : LEFT, e->head[i]);
	if (heads)
		print(e, END, "");
	for (size_t at = 0; at < e->n; at += strlen(e->held + at) + 1)
		print(e, e->held[at], e->held + at + 1);
	e->headed = true;
	e->n = 0;
}

/* Returns the text as it is held, clean. */
static const char *hold(struct emit *e, char what, const char *text)
{
	size_t n = strnlen(text, sizeof(e->held) - 2);

	if (e->n + n + 2 > sizeof(e->held))
		lay_out(e);
	char *held = e->held + e->n;

	held[0] = what;
	memcpy(held + 1, text, n);
	held[1 + n] = 0;
	e->n += 1 + n + 1;
	return fault_line(held + 1);
}

void emit_end_line(struct emit *e)
{
	if (e->open)
		hold(e, END, "");
	e->open = false;
	e->column = 0;
}

/* Adds a cell to the text, if it has one. */
static void show(struct emit *e, char what, const char *head, const char *text)
{
	unsigned i = e->column;

	if (e->json || !head)
		return;
	if (i == 0)
		emit_end_line(e); /* the one before */
	size_t width = width_of(hold(e, what, text));

	assert(i < EMIT_COLUMNS);
	if (i == e->columns) {
		e->head[i] = head;
		e->right[i] = what == RIGHT;
		e->width[i] = width_of(head);
		e->columns++;
	}
	e->width[i] = width > e->width[i] ? width : e->width[i];
	e->open = true;
	e->column++;
}

/* ---- JSON ---- */

static void put_string(struct emit *e, const char *text)
{
	const unsigned char *p = (const unsigned char *)text, *from = p;
	char escaped[8];

	put(e, "\"", 1);
	while (*p) {
		size_t n = text_character((const char *)p);
		bool control = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 to U+009F */

		if (n > 0 && *p != '"' && *p != '\\') {
			p += n;
			continue;
		}
		put(e, (const char *)from, (size_t)(p - from));
		p += control;
		snprintf(escaped, sizeof(escaped), "\\u%04x",
			control || *p < 0x80 ? *p : 0xdc00 + *p);
		put(e, escaped, strlen(escaped));
		from = ++p;
	}
	put(e, (const char *)from, (size_t)(p - from));
	put(e, "\"", 1);
}

/* If the member is to be written, writes its comma and key. */
static bool member(struct emit *e, const char *key)
{
	if (!e->json || !key)
		return false;
	if (!e->object)
		put(e, "{", 1);
	else if (e->comma)
		put(e, ",", 1);
	e->object = e->comma = true;
	if (*key) {
		put_string(e, key); /* may be the name of a dataset */
		put(e, ":", 1);
	}
	return true;
}

void emit_open(struct emit *e, const char *key, char bracket)
{
	if (!member(e, key))
		return;
	put(e, &bracket, 1);
	e->comma = false;
}

void emit_close(struct emit *e, char bracket)
{
	if (e->json)
		put(e, &bracket, 1);
	e->comma = true;
}

void emit_json(struct emit *e, const char *key, const char *json)
{
	if (member(e, key))
		put(e, json, strlen(json));
}

/* ---- values ---- */

void emit_text(struct emit *e, const char *key, const char *head, const char *text)
{
	if (!text)
		emit_json(e, key, "null");
	else if (member(e, key))
		put_string(e, text);
	show(e, LEFT, head, text ? text : "-");
}

void emit_number(struct emit *e, const char *key, const char *head, uint64_t value)
{
	char digits[21];
	const char *text = write_number(digits, value);

	emit_json(e, key, text);
	show(e, RIGHT, head, text);
}

void emit_optional(struct emit *e, const char *key, const char *head, uint64_t value, bool present)
{
	if (present) {
		emit_number(e, key, head, value);
		return;
	}
	emit_json(e, key, "null");
	show(e, RIGHT, head, "-");
}

void emit_decimal(struct emit *e, const char *key, const char *head, double value, int digits)
{
	char json[32], text[400]; /* of DBL_MAX */

	snprintf(json, sizeof(json), "%.9g", value);
	snprintf(text, sizeof(text), "%.*f", digits, value);
	emit_json(e, key, json);
	show(e, RIGHT, head, text);
}

void emit_bytes(struct emit *e, const char *key, const char *head, uint64_t value)
{
	emit_number(e, key, NULL, value);
	show(e, RIGHT, head, si((double)value, "B").text);
}

void emit_bool(struct emit *e, const char *key, const char *head, bool value)
{
	emit_json(e, key, value ? "true" : "false");
	show(e, LEFT, head, value ? "yes" : "no");
}

void emit_cell(struct emit *e, const char *head, const char *format, ...)
{
	char text[2 * PATH_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	show(e, RIGHT, head, text);
}

void emit_more(struct emit *e, const char *format, ...)
{
	char text[2 * PATH_MAX];
	va_list args;

	if (e->json)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	hold(e, TEXT, text);
	e->open = true;
}

/* ---- rows ---- */

void emit_row(struct emit *e)
{
	if (e->object)
		put(e, "}\n", 2);
	e->object = e->comma = false;
	e->column = 0;
}

void emit_table(struct emit *e)
{
	emit_end_line(e);
	lay_out(e);
	e->headed = false;
	e->columns = e->printed = 0;
}

int emit_end(struct emit *e, int status)
{
	emit_row(e);
	emit_table(e);
	if (fflush(to(e)) != 0 && !e->error)
		e->error = errno;
	return e->error ? ctl_fail("stdout: %s", strerror(e->error)) : status;
}

struct si si(double value, const char *unit)
{
	static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E"};
	struct si si;
	unsigned i = 0;

	for (; value >= 999.5 && i < 6; i++)
		value /= 1000;
	snprintf(si.text, sizeof(si.text), "%.*f %s%s", i > 0 && value < 99.95 ? 1 : 0, value,
		prefix[i], unit);
	return si;
}
