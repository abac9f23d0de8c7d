/*
 * The tokens of windows, read from the shards. Errors are printed.
 */
#ifndef TOKEND_CTL_WINDOWS_H
#define TOKEND_CTL_WINDOWS_H

#include "client/ctl/offline/history.h"
#include "client/ctl/offline/stream.h"

struct ctl_windows;

/* Borrows @s and @h until closed. NULL: out of memory, which is not printed. */
struct ctl_windows *ctl_windows_open(const struct ctl_stream *s, const struct ctl_history *h);
/* How many windows should be read at once: 1, or more if a dataset is in a store. */
uint64_t ctl_windows_block(const struct ctl_windows *reader);
/*
 * Reads the windows at @n places into @tokens, one after another: seq_len + extra tokens each, in
 * the stream's width. Returns the number of those before the first that cannot be read; less than
 * @n after an error was printed.
 */
uint64_t ctl_windows_read(
	struct ctl_windows *reader, const struct order_place *place, uint64_t n, void *tokens);
void ctl_windows_close(struct ctl_windows *reader);

#endif
