/*
 * The end of a read. What was read is held until its file was looked at again, because only that
 * says whether it was the shard (look.h). All reads of a file that ended since the last look share
 * the next one.
 */
#ifndef TOKEND_READER_END_H
#define TOKEND_READER_END_H

#include "daemon/reader/state.h"

/* The read, which has left its file, is done: with read->fault, if it has a code. If an NFS server
 * forgot the file (ESTALE), it goes to reader->again instead, once. */
void read_finish(struct reader *reader, struct read *read);
/* The same for a read that still uses its file. */
void read_fail(struct reader *reader, struct read *read);
/* The window is there, or read->fault says what is wrong with the contents: the next look at the
 * file decides. */
void read_hold(struct reader *reader, struct read *read);
/* Looks at all files of which reads have ended. Returns whether the backend has something to start.
 */
bool reader_look(struct reader *reader);

#endif
