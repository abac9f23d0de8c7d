/*
 * Pieces of an HTML page that needs nothing else: escaped text, and charts as inline SVG. A chart
 * has at most CHART_POINTS points, however long the run was.
 */
#ifndef TOKEND_CTL_CHART_H
#define TOKEND_CTL_CHART_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CHART_POINTS = 500, CHART_COLOURS = 10 };

struct chart {
	FILE *to;
	double x0, x1, y1; /* the axes: from x0 to x1, and from 0 to y1 */
};

/* Writes text with HTML's special characters escaped. Bytes that are not UTF-8 become '?'. */
void html_text(FILE *to, const char *text);
/* A number that a person can read: 1234567 as 1.23 M. */
void html_short(FILE *to, double value);

/* Rounds c->y1 up. @title is HTML; @x names the axis. */
void chart_begin(struct chart *c, const char *title, const char *x);
/* A line through points with ascending x. */
void chart_line(const struct chart *c, unsigned colour, const double *x, const double *y, size_t n);
/* The area between two lines. */
void chart_area(const struct chart *c, unsigned colour, const double *x, const double *below,
	const double *above, size_t n);
/* A vertical line at @x. */
void chart_mark(const struct chart *c, double x);
void chart_end(const struct chart *c);
/* An entry of the list that explains the colours. */
void chart_key(FILE *to, unsigned colour, const char *name);
const char *chart_colour(unsigned colour);

#endif
