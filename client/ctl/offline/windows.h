/*
 * The tokens of windows, read from the shards. Errors are printed.
 */
#ifndef TOKEND_CTL_WINDOWS_H
#define TOKEND_CTL_WINDOWS_H

#include "client/ctl/offline/stream.h"

struct ctl_windows;

/* A window of a cursor's dataset. */
struct ctl_window {
	const struct cursor *cursor;
	const struct dataset *dataset; /* of the config; NULL: it no longer has it */
	struct order_place place;
};

/* Borrows @s until closed. NULL: out of memory, which is not printed. */
struct ctl_windows *ctl_windows_open(const struct ctl_stream *s);
/* How many windows should be read at once: 1, or more if a dataset is in a store. */
uint64_t ctl_windows_block(const struct ctl_windows *reader);
/*
 * Reads @n windows into @tokens, one after another: seq_len + extra tokens each, in
 * the stream's width. Returns the number of those before the first that cannot be read; less than
 * @n after an error was printed.
 */
uint64_t ctl_windows_read(
	struct ctl_windows *reader, const struct ctl_window *window, uint64_t n, void *tokens);
void ctl_windows_close(struct ctl_windows *reader);

#endif
