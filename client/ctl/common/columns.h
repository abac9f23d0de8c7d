/* A table for people, whose columns are as wide as their content. */
#ifndef TOKEND_CTL_COLUMNS_H
#define TOKEND_CTL_COLUMNS_H

#include "client/ctl/common/out.h"

enum { CTL_COLUMNS = 12 };

struct ctl_column {
	const char *head; /* NULL, in all columns: the table has no head */
	bool right;	  /* aligned */
};

struct ctl_columns {
	const struct ctl_column *column; /* [n] */
	unsigned n;
	char **cell; /* [cells], row by row. A line of text is a row whose other cells are NULL */
	size_t cells;
	bool failed; /* out of memory */
};

/* Adds the next cell, row by row. */
__attribute__((format(printf, 2, 3))) void ctl_columns_add(
	struct ctl_columns *c, const char *format, ...);
/* Adds a line of text between two rows. */
void ctl_columns_line(struct ctl_columns *c, const char *text);
/* Prints the table with its head, if it has rows, and empties it. False: out of memory, and an
 * error was printed. */
bool ctl_columns_put(struct ctl_columns *c, struct ctl_out *out);

#endif
