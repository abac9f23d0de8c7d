/* A line of a terminal, in cells: texts are cut or padded to a width, and never wrap. */
#ifndef TOKEND_CTL_TOP_LINE_H
#define TOKEND_CTL_TOP_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

enum { TOP_LINE = 1024 }; /* characters of a line */

struct top_line {
	wchar_t text[TOP_LINE];
	unsigned n, cells, width;
};

/* An empty line of @width cells. */
struct top_line top_line(int width);
/* Puts a column of @width cells, after a space unless it is the first. What a line cannot contain
 * is left out; characters that cannot be printed become '?'. */
void top_line_put(struct top_line *l, const char *text, unsigned width, bool right);
/* Puts a column with the last values of @value as a sparkline; the largest is the highest. */
void top_line_spark(
	struct top_line *l, const float *value, unsigned n, unsigned width, bool blocks);
/* Pads the line to its width. */
void top_line_fill(struct top_line *l);

#endif
