/*
 * What a command prints, said once: with --json an object per line, otherwise a table, or lines of
 * a name and a value.
 *
 *	struct emit e = {.json = ctl_given(a, JSON)};
 *
 *	for (size_t i = 0; i < n && !e.failed; i++) {
 *		emit_text(&e, "dataset", "DATASET", name[i]);
 *		emit_number(&e, "objects", "OBJECTS", objects[i]);
 *		emit_row(&e);
 *	}
 *	return emit_end(&e, CTL_OK);
 *
 * prints {"dataset":"web","objects":7}, or below a line of heads
 *
 *	web            7
 *
 * @key names the member of the object; NULL: it is only in the text; "": it is an item of an array.
 * @head is the column's head; NULL: it is only in the JSON; "": the column has none. Heads are
 * borrowed until the table ends. Each row of a table has the same columns, at most EMIT_COLUMNS;
 * its members may differ.
 *
 * Columns are as wide as in the rows that fit in `held`. Later rows are printed as they come, and a
 * wider cell moves the rest of its row. So a table of any length takes no memory, and nothing here
 * fails but writing.
 *
 * Text is cleaned: control characters, also U+0080 to U+009F, and bytes that are not UTF-8 become
 * '?'. In JSON they are escaped; bytes that are not UTF-8 become \udcXX, as in Python's
 * surrogateescape.
 */
#ifndef TOKEND_CTL_EMIT_H
#define TOKEND_CTL_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { EMIT_COLUMNS = 24, EMIT_HELD_BYTES = 1 << 15 };

struct emit {
	FILE *to; /* NULL: stdout */
	bool json;
	bool failed; /* writing failed; emit_end() reports it */

	/* Private. */
	int error;
	bool fields, object, comma; /* object: the row's is open */
	bool open;		    /* a line of text that has no end yet */
	bool settled;		    /* the columns have their widths, and `held` is empty */
	unsigned column, printed;   /* columns of this row: seen, printed */
	unsigned columns;
	size_t owed; /* spaces before the next cell */
	const char *head[EMIT_COLUMNS];
	bool right[EMIT_COLUMNS];
	size_t width[EMIT_COLUMNS];
	size_t n;
	char held[EMIT_HELD_BYTES]; /* cells: what they are, the text, 0 */
};

/* A text, aligned left. NULL is null in JSON and "-" in text. */
void emit_text(struct emit *e, const char *key, const char *head, const char *text);
/* Numbers, aligned right. */
void emit_number(struct emit *e, const char *key, const char *head, uint64_t value);
/* A number that may be absent: null, and "-". */
void emit_optional(struct emit *e, const char *key, const char *head, uint64_t value, bool present);
/* JSON has 9 digits, text @digits after the point. */
void emit_decimal(struct emit *e, const char *key, const char *head, double value, int digits);
/* From 0 to 1; in text as "12.500000 %". */
void emit_share(struct emit *e, const char *key, const char *head, double value);
/* In text with a unit of powers of 1000: "1.4 TB". */
void emit_bytes(struct emit *e, const char *key, const char *head, uint64_t value);
/* true or false; "yes" or "no". */
void emit_bool(struct emit *e, const char *key, const char *head, bool value);
void emit_null(struct emit *e, const char *key, const char *head);

/* Only in the text: a cell that is aligned right. */
__attribute__((format(printf, 3, 4))) void emit_cell(
	struct emit *e, const char *head, const char *format, ...);
/* Only in the text: a line between rows. */
__attribute__((format(printf, 2, 3))) void emit_line(struct emit *e, const char *format, ...);
/* Only in the text: more at the end of the row or line that was the last. */
__attribute__((format(printf, 2, 3))) void emit_more(struct emit *e, const char *format, ...);

/* Only in JSON: begins an object or array, '{' or '[', and ends it, '}' or ']'. */
void emit_open(struct emit *e, const char *key, char bracket);
void emit_close(struct emit *e, char bracket);
/* Only in JSON: a value that is JSON already. */
void emit_json(struct emit *e, const char *key, const char *json);
/* Only in JSON: the members of an object that is JSON already. */
void emit_members(struct emit *e, const char *object);

/* Ends the row, and its object. */
void emit_row(struct emit *e);
/* Ends the table; then there is another one, with other columns. */
void emit_table(struct emit *e);
/* Ends the table; then each value is a line, of its head and the value. */
void emit_fields(struct emit *e);
/* Ends it all. Returns @status, or CTL_FAILED after a message if writing failed. */
int emit_end(struct emit *e, int status);

/* "1.4 TB", of any unit: "B", "tokens". */
struct si {
	char text[32];
};
struct si si(double value, const char *unit);

#endif
