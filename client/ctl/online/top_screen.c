#include "client/ctl/online/top_screen.h"

#include "client/ctl/common/clock.h"
#include "client/ctl/online/top_line.h"

#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <term.h>
#undef lines /* of term.h */
#undef columns

enum { ABOVE = 4, BELOW = 1 }; /* lines above and below the rows */

struct top_screen {
	SCREEN *terminal;
	int signals; /* readable: a signal to end or a new size has arrived */
	bool keys;   /* the terminal can still be read */
	bool blocks; /* it shows the characters of a sparkline */
	enum top_column by;
	bool reversed;
	unsigned first; /* row shown in the first line */
};

static const struct {
	const char *name;
	unsigned width;	 /* with 80 columns */
	bool right;	 /* aligned to the right */
	bool descending; /* the usual order */
} column[TOP_COLUMNS] = {
	[TOP_STREAM] = {"STREAM", 9, false, false},
	[TOP_RUN] = {"RUN", 12, false, false},
	[TOP_RANK] = {"RANK", 8, true, false},
	[TOP_POSITION] = {"POSITION", 11, true, true},
	[TOP_RATE] = {"TOKENS/S", 8, true, true},
	[TOP_READY] = {"READY", 7, true, false},
	[TOP_WAITS] = {"WAITS", 11, false, true},
};

enum { HISTORY = 7, USUAL = 80 };

struct widths {
	unsigned stream, run, history;
};

/* Names get what a wide terminal has left over, up to their length; the sparklines get the rest. */
static struct widths widths(const struct top_list *l)
{
	struct widths w = {column[TOP_STREAM].width, column[TOP_RUN].width, HISTORY};
	unsigned more = COLS > USUAL ? (unsigned)COLS - USUAL : 0;
	size_t stream = w.stream, run = w.run;

	for (unsigned i = 0; i < l->n; i++) {
		const struct top_row *row = &l->row[l->order[i]];
		size_t a = strlen(row->stream), b = strlen(row->run);

		stream = a > stream ? a : stream;
		run = b > run ? b : run;
	}
	while (more > 0 && (w.stream < stream || w.run < run)) {
		if (w.run < run)
			w.run++;
		else
			w.stream++;
		more--;
	}
	w.history += more;
	if (w.history > TOP_HISTORY)
		w.history = TOP_HISTORY;
	return w;
}

/* ---- lines ---- */

static void put(int y, const struct top_line *line, int attributes)
{
	attrset(attributes);
	mvaddnwstr(y, 0, line->text, (int)line->n);
	attrset(A_NORMAL);
}

static void short_number(char text[16], double value)
{
	static const char unit[] = " kMGTP";
	unsigned i = 0;

	for (; value >= 999.5 && unit[i + 1]; i++)
		value /= 1000;
	if (i == 0)
		snprintf(text, 16, "%.0f", value);
	else
		snprintf(text, 16, "%.*f %c",
			value < 9.995	? 2
			: value < 99.95 ? 1
					: 0,
			value, unit[i]);
}

static void draw_header(int y, const struct widths *w)
{
	struct top_line line = top_line(COLS);

	top_line_put(&line, column[TOP_STREAM].name, w->stream, false);
	top_line_put(&line, column[TOP_RUN].name, w->run, false);
	for (int c = TOP_RANK; c < TOP_COLUMNS; c++) {
		top_line_put(&line, column[c].name, column[c].width, column[c].right);
		if (c == TOP_RATE)
			top_line_put(&line, "", w->history, false);
	}
	top_line_fill(&line);
	put(y, &line, A_REVERSE);
}

static void draw_row(
	const struct top_screen *s, int y, const struct top_row *row, const struct widths *w)
{
	struct top_line line = top_line(COLS);
	char text[64], waits[32] = "";

	top_line_put(&line, row->stream, w->stream, false);
	top_line_put(&line, row->run, w->run, false);
	snprintf(text, sizeof(text), "%" PRIu64 "/%" PRIu64, row->rank, row->world);
	top_line_put(&line, text, column[TOP_RANK].width, true);
	snprintf(text, sizeof(text), "%" PRIu64, row->position);
	top_line_put(&line, text, column[TOP_POSITION].width, true);
	short_number(text, row->rate);
	top_line_put(&line, text, column[TOP_RATE].width, true);
	top_line_spark(&line, row->rates.of + TOP_HISTORY - row->rates.n, row->rates.n, w->history,
		s->blocks);
	snprintf(text, sizeof(text), "%" PRIu64 "/%" PRIu64, row->ready, row->slots);
	top_line_put(&line, text, column[TOP_READY].width, true);
	if (row->store_ms > 0)
		snprintf(waits, sizeof(waits), "store %" PRIu64 "s", row->store_ms / 1000);
	else if (row->ready == 0)
		snprintf(waits, sizeof(waits), "trainer");
	else if (row->full_ms > 0)
		snprintf(waits, sizeof(waits), "tokend %" PRIu64 "s", row->full_ms / 1000);
	snprintf(text, sizeof(text), "%s%s", waits, row->request ? " *" : "");
	top_line_put(&line, text, column[TOP_WAITS].width, false);
	put(y, &line, row->ready == 0 ? A_BOLD : A_NORMAL);
}

static void draw_total(const struct top_screen *s, int y, const struct top_list *l)
{
	struct top_line line = top_line(COLS);
	unsigned width = COLS > USUAL ? TOP_HISTORY : TOP_HISTORY - 20;
	char text[16], whole[40];

	short_number(text, l->rate);
	snprintf(whole, sizeof(whole), "%s tokens/s", text);
	top_line_put(&line, whole, 18, false);
	top_line_spark(&line, l->rates.of + TOP_HISTORY - l->rates.n, l->rates.n, width, s->blocks);
	put(y, &line, A_NORMAL);
}

static void draw_stores(int y, const char (*store)[STORE_LINE_BYTES], unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct top_line line = top_line(COLS);

		top_line_put(&line, store[i], (unsigned)COLS, false);
		put(y + (int)i, &line, A_NORMAL);
	}
}

static void draw_footer(const struct top_screen *s, int y)
{
	struct top_line line = top_line(COLS);
	bool descending = column[s->by].descending != s->reversed;
	char text[120];

	snprintf(text, sizeof(text), "q quits  < > sort: %s, %s first  r reverses  * request open",
		column[s->by].name, descending ? "highest" : "lowest");
	top_line_put(&line, text, COLS, false);
	put(y, &line, A_DIM);
}

void top_screen_draw(struct top_screen *s, struct top_list *l, const struct top_title *title)
{
	struct top_line line = top_line(COLS);
	unsigned room = LINES > ABOVE + BELOW ? (unsigned)(LINES - ABOVE - BELOW) : 0;
	unsigned stores = title->stores < room / 2 ? title->stores : room / 2;

	room -= stores;
	top_list_sort(l, s->by, column[s->by].descending != s->reversed);
	if (s->first + room > l->n)
		s->first = l->n > room ? l->n - room : 0;

	struct widths w = widths(l);

	erase();
	top_line_put(&line, title->about, COLS, false);
	put(0, &line, title->lost ? A_BOLD : A_NORMAL);
	draw_total(s, 1, l);
	draw_header(ABOVE - 1, &w);
	for (unsigned i = 0; i < room && s->first + i < l->n; i++)
		draw_row(s, ABOVE + (int)i, &l->row[l->order[s->first + i]], &w);
	draw_stores(LINES - 1 - (int)stores, title->store, stores);
	draw_footer(s, LINES - 1);
	refresh();
}

/* ---- keys and signals ---- */

/* False: the user wants to quit. */
static bool press(struct top_screen *s, int key)
{
	unsigned page = LINES > ABOVE + BELOW ? (unsigned)(LINES - ABOVE - BELOW) : 1;
	enum top_column by = s->by;

	if (key == '<' || key == ',' || key == KEY_LEFT)
		s->by = (s->by + TOP_COLUMNS - 1) % TOP_COLUMNS;
	else if (key == '>' || key == '.' || key == KEY_RIGHT)
		s->by = (s->by + 1) % TOP_COLUMNS;
	else if (key == 'r')
		s->reversed = !s->reversed;
	else if (key == KEY_UP || key == 'k')
		s->first -= s->first > 0;
	else if (key == KEY_DOWN || key == 'j')
		s->first++;
	else if (key == KEY_PPAGE)
		s->first -= s->first < page ? s->first : page;
	else if (key == KEY_NPAGE)
		s->first += page;
	if (s->by != by) {
		s->reversed = false;
		s->first = 0;
	}
	return key != 'q' && key != 'Q';
}

/* False: the user wants to quit. */
static bool read_keys(struct top_screen *s)
{
	int key = getch();

	s->keys = key != ERR; /* readable without a key: the terminal is gone */
	for (; key != ERR; key = getch())
		if (!press(s, key))
			return false;
	return true;
}

/* False: a signal to end. */
static bool read_signal(struct top_screen *s)
{
	struct signalfd_siginfo info;
	struct winsize size;

	if (read(s->signals, &info, sizeof(info)) != sizeof(info))
		return true;
	if (info.ssi_signo != SIGWINCH)
		return false;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
		resizeterm(size.ws_row, size.ws_col);
	return true;
}

bool top_screen_wait(
	struct top_screen *s, struct top_list *l, const struct top_title *title, uint64_t until)
{
	for (;;) {
		struct pollfd p[] = {
			{s->signals, POLLIN, 0}, {s->keys ? STDIN_FILENO : -1, POLLIN, 0}};

		top_screen_draw(s, l, title);

		uint64_t now = ctl_clock_ms();
		int n = poll(p, 2, now < until ? (int)(until - now) : 0);

		if (n > 0 && ((p[0].revents && !read_signal(s)) || (p[1].revents && !read_keys(s))))
			return false;
		if (ctl_clock_ms() >= until)
			return true;
	}
}

/* ---- opening and closing ---- */

/* Can the terminal of $TERM move its cursor? */
static bool able(void)
{
	int error;

	return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) &&
	       setupterm(NULL, STDOUT_FILENO, &error) == OK && cursor_address &&
	       del_curterm(cur_term) == OK;
}

/* Blocked signals leave the terminal as it is; the loop reads them. */
static int take_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	sigaddset(&set, SIGWINCH);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

struct top_screen *top_screen_open(void)
{
	struct top_screen *s = able() ? calloc(1, sizeof(*s)) : NULL;

	if (!s)
		return NULL;
	setlocale(LC_CTYPE, "");
	s->blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	s->keys = true;
	s->signals = take_signals();
	s->terminal = newterm(NULL, stdout, stdin);
	if (!s->terminal) {
		close(s->signals);
		free(s);
		return NULL;
	}
	set_escdelay(25);
	cbreak();
	noecho();
	nodelay(stdscr, TRUE);
	keypad(stdscr, TRUE);
	curs_set(0);
	return s;
}

void top_screen_close(struct top_screen *s)
{
	endwin();
	delscreen(s->terminal);
	close(s->signals);
	free(s);
}
