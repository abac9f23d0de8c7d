/*
 * The tokens of windows, read from the shards. Errors are printed.
 */
#ifndef TOKEND_CTL_READER_H
#define TOKEND_CTL_READER_H

#include "client/ctl/offline/history.h"
#include "client/ctl/offline/stream.h"

struct ctl_reader;

/* Borrows both until closed. NULL: out of memory, which is not printed. */
struct ctl_reader *ctl_reader_open(const struct ctl_stream *s, const struct ctl_history *h);
/* Reads the window at @place into @tokens: seq_len + extra tokens in the stream's width. */
bool ctl_reader_read(struct ctl_reader *reader, const struct order_place *place, void *tokens);
void ctl_reader_close(struct ctl_reader *reader);

#endif
