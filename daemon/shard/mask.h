/*
 * Loss masks: a byte for each token of a shard, 1 where it may be a label, 0 where not, and no
 * other. A file as long as the shard has tokens, or NumPy's .npy of that many bools. Which file:
 * what the hint's label_mask holds under the shard's name, else the one that the format keeps
 * beside the shard (shard_format.mask), else none.
 */
#ifndef TOKEND_SHARD_MASK_H
#define TOKEND_SHARD_MASK_H

#include "daemon/shard/format.h"

struct mask;

/* bytes_id() of the one that the format keeps beside the shard, which is not opened; 0: there is
 * none. */
uint32_t mask_side_id(const struct shard_format *format, const char *shard);
/* Of the shard at @path. *@mask is NULL where there is none, which with a label_mask is a fault.
 * False: @fault.
 */
bool mask_open(const struct shard_format *format, const char *path, const struct shard_hint *hint,
	uint64_t tokens, struct mask **mask, struct fault *fault);
void mask_close(struct mask *mask);
const struct bytes *mask_file(const struct mask *mask);
uint32_t mask_id(const struct mask *mask);    /* bytes_id() of its file */
uint64_t mask_bytes(const struct mask *mask); /* of memory that it holds */
/* Those of tokens [token, token + n). As shard_read() says; another value than 0 and 1 is EBADMSG.
 * Any thread. */
bool mask_read(
	const struct mask *mask, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

#endif
