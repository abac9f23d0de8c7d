/*
 * Bytes that turn out to be damaged, by a checksum, are read again once: a bit may have flipped on
 * their way from the disk. The page cache would hand out the same bytes again, so it has to drop
 * them first.
 */
#ifndef TOKEND_SHARD_REREAD_H
#define TOKEND_SHARD_REREAD_H

#include <stdint.h>

/* The next read of bytes [at, at + n) of the file, or of all after @at where @n is 0, comes from
 * the disk. */
void reread_forget(int fd, uint64_t at, uint64_t n);
/* Reports that these bytes were damaged (@why) when first read, and good when read again. */
void reread_was_good(int fd, uint64_t at, uint64_t n, const char *why);
/*
 * From now on reread_was_good() calls @told with @context, in any thread, several at once. Call it
 * before there are other threads. NULL, as at first: nobody is told.
 *
 * A process has one such receiver. It is found by a pointer in reread.c, and not passed along,
 * because only checksums that fail need it, ten calls below whoever opened the shard.
 */
typedef void reread_told(void *context, int fd, uint64_t at, uint64_t n, const char *why);
void reread_tell(reread_told *told, void *context);

#endif
