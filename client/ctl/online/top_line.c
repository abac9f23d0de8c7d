#include "client/ctl/online/top_line.h"

#include <string.h>

struct top_line top_line(int width)
{
	struct top_line l = {.width = width > 0 ? (unsigned)width : 0};

	if (l.width > TOP_LINE / 2)
		l.width = TOP_LINE / 2;
	return l;
}

static void put(struct top_line *l, wchar_t c, unsigned cells)
{
	if (l->cells + cells > l->width || l->n == TOP_LINE)
		return;
	l->text[l->n++] = c;
	l->cells += cells;
}

static void put_spaces(struct top_line *l, unsigned n)
{
	while (n-- > 0)
		put(l, L' ', 1);
}

void top_line_fill(struct top_line *l)
{
	put_spaces(l, l->width - l->cells);
}

/* The next character of *@text, and the number of its cells. Moves *@text past it. */
static wchar_t next(const char **text, mbstate_t *state, unsigned *cells)
{
	wchar_t c;
	size_t n = mbrtowc(&c, *text, strlen(*text), state);
	int width = n > 0 && n <= strlen(*text) ? wcwidth(c) : -1;

	if (width < 0) {
		*state = (mbstate_t){0};
		n = n > 0 && n <= strlen(*text) ? n : 1;
		c = L'?';
		width = 1;
	}
	*text += n;
	*cells = (unsigned)width;
	return c;
}

static unsigned cells_of(const char *text)
{
	mbstate_t state = {0};
	unsigned all = 0, cells;

	for (const char *at = text; *at; all += cells)
		next(&at, &state, &cells);
	return all;
}

void top_line_put(struct top_line *l, const char *text, unsigned width, bool right)
{
	unsigned all = cells_of(text), used = 0, cells;
	mbstate_t state = {0};

	put_spaces(l, l->cells > 0);
	if (right && all < width)
		put_spaces(l, width - all);
	for (const char *at = text; *at; used += cells) {
		wchar_t c = next(&at, &state, &cells);

		if (used + cells > width - (all > width)) {
			/* A cut text must not look like a whole one. */
			put(l, L'~', 1);
			used++;
			break;
		}
		put(l, c, cells);
	}
	if (!right && used < width)
		put_spaces(l, width - used);
}

void top_line_spark(struct top_line *l, const float *value, unsigned n, unsigned width, bool blocks)
{
	static const wchar_t ramp[2][9] = {L"_.-:=+*#", L"▁▂▃▄▅▆▇█"};
	float most = 0;

	put_spaces(l, l->cells > 0);
	if (n > width) {
		value += n - width;
		n = width;
	}
	put_spaces(l, width - n);
	for (unsigned i = 0; i < n; i++)
		most = value[i] > most ? value[i] : most;
	for (unsigned i = 0; i < n; i++)
		put(l, ramp[blocks][most > 0 ? (unsigned)(value[i] / most * 7 + 0.5F) : 0], 1);
}
