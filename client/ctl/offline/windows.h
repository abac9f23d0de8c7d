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
/* Reads the window at @place into @tokens: seq_len + extra tokens in the stream's width. False
 * after an error was printed. */
bool ctl_windows_read(struct ctl_windows *reader, const struct order_place *place, void *tokens);
void ctl_windows_close(struct ctl_windows *reader);

#endif
