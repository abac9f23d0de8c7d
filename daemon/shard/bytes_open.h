/*
 * Opens a file or an object as a source of bytes, compressed or not. To add a compression, write
 * one file and add a line to the table in bytes_open.c.
 */
#ifndef TOKEND_SHARD_BYTES_OPEN_H
#define TOKEND_SHARD_BYTES_OPEN_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/frames.h"

/*
 * With @objects, @path is the URL of an object and @fd is -1; otherwise it is an open file.
 *
 * A file is compressed if it begins as a zstd file or is named *.zst or *.zstd.
 *
 * @frames is the cache of decoded frames; NULL: the source has its own, of about one frame.
 * @budget_bytes is the largest decoded size of a frame; 0: 256 MiB. The caller closes @fd after the
 * source.
 *
 * Rejects a file that is not regular, a wrong seek table, a frame over the budget, and damaged
 * frames. On failure returns NULL; @fault names field, value and limit, without the path.
 */
struct bytes *bytes_open(int fd, const char *path, const struct objects *objects,
	struct frames *frames, uint64_t budget_bytes, struct fault *fault);
/* The same for one that is known not to be compressed. */
struct bytes *bytes_open_raw(
	int fd, const char *path, const struct objects *objects, struct fault *fault);

#endif
