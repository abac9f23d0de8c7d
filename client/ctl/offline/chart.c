#include "client/ctl/offline/chart.h"

#include "proto/text.h"

#include <inttypes.h>
#include <math.h>

enum { WIDTH = 760, HEIGHT = 220, LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 34, TICKS = 4 };

const char *chart_colour(unsigned colour)
{
	/* Distinct also for people who see few colours; the last is for all others. */
	static const char *const of[CHART_COLOURS] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
		"#66ccee", "#aa3377", "#999933", "#882255", "#44aa99", "#bbbbbb"};

	return of[colour < CHART_COLOURS ? colour : CHART_COLOURS - 1];
}

void html_text(FILE *to, const char *text)
{
	while (*text) {
		unsigned n = text_character(text);

		if (*text == '&')
			fputs("&amp;", to);
		else if (*text == '<')
			fputs("&lt;", to);
		else if (*text == '>')
			fputs("&gt;", to);
		else if (*text == '"')
			fputs("&quot;", to);
		else if (n == 0)
			fputc('?', to);
		else
			fwrite(text, 1, n, to);
		text += n ? n : 1;
	}
}

void html_short(FILE *to, double value)
{
	static const char unit[] = " kMGTP";
	unsigned i = 0;

	for (; value >= 999.5 && unit[i + 1]; i++)
		value /= 1000;
	if (i > 0)
		fprintf(to, "%.3g %c", value, unit[i]);
	else
		fprintf(to, "%.3g", value);
}

static double at_x(const struct chart *c, double x)
{
	return LEFT + (c->x1 > c->x0 ? (x - c->x0) / (c->x1 - c->x0) : 0) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct chart *c, double y)
{
	return HEIGHT - BOTTOM - (c->y1 > 0 ? y / c->y1 : 0) * (HEIGHT - TOP - BOTTOM);
}

static void tick(const struct chart *c, double part)
{
	double x = c->x0 + part * (c->x1 - c->x0), y = part * c->y1;

	fprintf(c->to, "<path class=g d=\"M%d %.1fH%d\"/><text class=r x=%d y=%.1f>", LEFT,
		at_y(c, y), WIDTH - RIGHT, LEFT - 5, at_y(c, y) + 4);
	html_short(c->to, y);
	fprintf(c->to, "</text><text class=%s x=%.1f y=%d>", part < 0.99 ? "m" : "r", at_x(c, x),
		HEIGHT - BOTTOM + 15);
	html_short(c->to, x);
	fputs("</text>\n", c->to);
}

/* The least number ≥ @value that has round quarters. */
static double round_up(double value)
{
	static const double step[] = {1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10};
	double unit = pow(10, floor(log10(value)));
	unsigned i = 0;

	while (step[i] * unit < value && i < sizeof(step) / sizeof(step[0]) - 1)
		i++;
	return step[i] * unit;
}

void chart_begin(struct chart *c, const char *title, const char *x)
{
	c->y1 = c->y1 > 0 ? round_up(c->y1) : 1;
	fprintf(c->to,
		"<figure><figcaption>%s</figcaption>\n"
		"<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"%s\">\n",
		title, WIDTH, HEIGHT, title);
	for (int i = 0; i <= TICKS; i++)
		tick(c, (double)i / TICKS);
	fprintf(c->to, "<text class=m x=%d y=%d>%s</text>\n", (WIDTH + LEFT) / 2, HEIGHT - 4, x);
}

void chart_line(const struct chart *c, unsigned colour, const double *x, const double *y, size_t n)
{
	fprintf(c->to, "<polyline style=\"stroke:%s\" points=\"", chart_colour(colour));
	for (size_t i = 0; i < n; i++)
		fprintf(c->to, "%.1f,%.1f ", at_x(c, x[i]), at_y(c, y[i]));
	fputs("\"/>\n", c->to);
}

void chart_area(const struct chart *c, unsigned colour, const double *x, const double *below,
	const double *above, size_t n)
{
	fprintf(c->to, "<polygon style=\"fill:%s\" points=\"", chart_colour(colour));
	for (size_t i = 0; i < n; i++)
		fprintf(c->to, "%.1f,%.1f ", at_x(c, x[i]), at_y(c, above[i]));
	for (size_t i = n; i-- > 0;)
		fprintf(c->to, "%.1f,%.1f ", at_x(c, x[i]), at_y(c, below[i]));
	fputs("\"/>\n", c->to);
}

void chart_mark(const struct chart *c, double x)
{
	fprintf(c->to, "<path class=k d=\"M%.1f %dV%d\"/>\n", at_x(c, x), TOP, HEIGHT - BOTTOM);
}

void chart_end(const struct chart *c)
{
	fputs("</svg></figure>\n", c->to);
}

void chart_key(FILE *to, unsigned colour, const char *name)
{
	fprintf(to, "<span class=key><i style=\"background:%s\"></i>", chart_colour(colour));
	html_text(to, name);
	fputs("</span> ", to);
}
