/* `tokctl top` on a terminal, with ncurses. Until it ends, no other code writes to the terminal. */
#ifndef TOKEND_CTL_TOP_SCREEN_H
#define TOKEND_CTL_TOP_SCREEN_H

#include "client/ctl/online/store_lines.h"
#include "client/ctl/online/top_list.h"

#include <stdbool.h>

struct top_screen;

struct top_title {
	const char *about; /* the daemon, or the fault for which it is not there */
	bool lost;	   /* it is not there */
	const char (*store)[STORE_LINE_BYTES]; /* [stores]: shown below the sessions */
	unsigned stores;
};

/* Takes over the terminal. NULL: stdin or stdout is not a terminal, or cannot move its cursor.
 */
struct top_screen *top_screen_open(void);
/* Restores the terminal. */
void top_screen_close(struct top_screen *s);
void top_screen_draw(struct top_screen *s, struct top_list *l, const struct top_title *title);
/* Draws, and draws again at each key and new size, until @until (ctl_clock_ms()). False: the user
 * wants to quit, by a key or by a signal. */
bool top_screen_wait(
	struct top_screen *s, struct top_list *l, const struct top_title *title, uint64_t until);

#endif
