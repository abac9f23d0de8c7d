/*
 * The end of a read. A read is held until its file was looked at again, because only that shows
 * whether the file is still the shard that was listed (look.h). All reads of a file that ended
 * since its last look share the next one. Reads from stores are not held: the store has compared
 * every answer with the manifest.
 */
#ifndef TOKEND_READER_END_H
#define TOKEND_READER_END_H

#include "daemon/reader/state.h"

/* Ends a read that no longer uses a file, with read->fault if that has a code. If an NFS server
 * forgot the file (ESTALE), the read goes to reader->again instead, once; if the fault may pass,
 * to reader->paused, twice. */
void read_finish(struct reader *reader, struct read *read);
/* Ends a read that may use a file, with read->fault. */
void read_fail(struct reader *reader, struct read *read);
/* The same of one that nobody needs any more. */
void read_cancelled(struct reader *reader, struct read *read);
/* Holds a read that has all of its window, or a fault of the contents, until the next look at its
 * file. */
void read_hold(struct reader *reader, struct read *read);
/* Looks at all files of which reads have ended. True: it submitted works; commit them. */
bool reader_look(struct reader *reader);

#endif
