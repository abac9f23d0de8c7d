/*
 * Ends reads from stores that nobody needs any more. A store may not answer for hours, and a
 * session that leaves does not wait for it.
 */
#ifndef TOKEND_READER_CANCEL_H
#define TOKEND_READER_CANCEL_H

#include "daemon/reader/state.h"

/* Cancels the openings of shards for which no read waits. */
void openings_cancel(struct reader *reader);

#endif
