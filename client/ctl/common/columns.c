#include "client/ctl/common/columns.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Takes ownership of @text. */
static void push(struct ctl_columns *c, char *text)
{
	/* The room doubles. */
	if ((c->cells & (c->cells - 1)) == 0) {
		char **more = realloc(c->cell, (c->cells ? 2 * c->cells : 1) * sizeof(*more));

		if (!more) {
			c->failed = true;
			free(text);
			return;
		}
		c->cell = more;
	}
	c->cell[c->cells++] = text;
}

void ctl_columns_add(struct ctl_columns *c, const char *format, ...)
{
	char *text;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	c->failed |= !text;
	if (!c->failed)
		push(c, text);
	else
		free(text);
}

void ctl_columns_line(struct ctl_columns *c, const char *text)
{
	ctl_columns_add(c, "%s", text);
	for (unsigned i = 1; i < c->n && !c->failed; i++)
		push(c, NULL);
}

/* Is the row at @row a line of text? */
static bool is_line(const struct ctl_columns *c, char *const *row)
{
	return c->n > 1 && !row[1];
}

static void put_cell(struct ctl_out *out, const char *text, size_t width, bool right, bool last)
{
	size_t shown = ctl_width(text);

	if (right)
		ctl_put_left(out, "", shown < width ? width - shown : 0);
	ctl_put_left(out, text, right || last ? 0 : width);
	ctl_put(out, last ? "\n" : "  ");
}

bool ctl_columns_put(struct ctl_columns *c, struct ctl_out *out)
{
	size_t width[CTL_COLUMNS] = {0};
	bool done = !c->failed;

	for (unsigned i = 0; i < c->n; i++)
		width[i] = c->column[i].head ? ctl_width(c->column[i].head) : 0;
	for (size_t at = 0; at + c->n <= c->cells; at += c->n)
		for (unsigned i = 0; i < c->n && !is_line(c, &c->cell[at]); i++) {
			size_t shown = ctl_width(c->cell[at + i]);

			width[i] = shown > width[i] ? shown : width[i];
		}
	for (unsigned i = 0; i < c->n && done && c->cells > 0 && c->column[i].head; i++)
		put_cell(out, c->column[i].head, width[i], c->column[i].right, i + 1 == c->n);
	for (size_t at = 0; done && at + c->n <= c->cells; at += c->n) {
		unsigned used = is_line(c, &c->cell[at]) ? 1 : c->n;

		while (used > 1 && !c->cell[at + used - 1][0])
			used--;
		for (unsigned i = 0; i < used; i++)
			put_cell(out, c->cell[at + i], width[i], c->column[i].right, i + 1 == used);
	}
	for (size_t i = 0; i < c->cells; i++)
		free(c->cell[i]);
	free(c->cell);
	if (c->failed)
		ctl_fail(PHRASE_MEMORY);
	*c = (struct ctl_columns){.column = c->column, .n = c->n};
	return done;
}
