/*
 * The source of an open file, whichever it is: as it lies, or compressed. Another compression is
 * one more file and one more line in bytes_open.c's table.
 */
#ifndef TOKEND_SHARD_BYTES_OPEN_H
#define TOKEND_SHARD_BYTES_OPEN_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/frames.h"

/*
 * A file is compressed if it begins as a zstd file or is called *.zst or *.zstd. @frames may be
 * NULL: a cache of its own, of about one frame. @budget_bytes: what one frame may decode to; 0: 256
 * MiB. Rejects, naming field, value and limit: a file that is not regular, a seek table that is
 * wrong, a frame above the budget, damaged frames. @fd stays the caller's and must outlive the
 * source. NULL:
 * @fault, one line without the path.
 */
struct bytes *bytes_open(int fd, const char *path, struct frames *frames, uint64_t budget_bytes,
	struct fault *fault);

#endif
