/*
 * Bytes with a wrong checksum are read again once: a bit may have flipped on the way from the disk.
 * The page cache must drop them first, otherwise it returns the same bytes again.
 */
#ifndef TOKEND_SHARD_REREAD_H
#define TOKEND_SHARD_REREAD_H

#include <stdint.h>

/* Drops bytes [at, at + n) of the file from the page cache; @n = 0: to the end of the file. */
void reread_forget(int fd, uint64_t at, uint64_t n);
/* Reports that these bytes were damaged (@why) when first read, and good when read again. */
void reread_was_good(int fd, uint64_t at, uint64_t n, const char *why);
/*
 * Sets the receiver of reread_was_good(): it calls @receiver with @context, in any thread, several
 * at once. NULL, the default: no receiver. Call it before starting other threads.
 *
 * A process has one receiver, a static pointer in reread.c. It is not passed along as a parameter,
 * because only failed checksums need it, ten calls below the code that opened the shard.
 */
typedef void reread_receiver(void *context, int fd, uint64_t at, uint64_t n, const char *why);
void reread_tell(reread_receiver *receiver, void *context);

#endif
