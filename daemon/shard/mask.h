/*
 * Loss masks: a byte for each token of a shard, 1 if it may be a label, otherwise 0. The file has
 * as many bytes as the shard has tokens, or is a NumPy .npy of that many bools. If the hint has a
 * label_mask directory, it is the file there with the shard's name; otherwise the format's side
 * file (shard_format.mask), if there is one.
 */
#ifndef TOKEND_SHARD_MASK_H
#define TOKEND_SHARD_MASK_H

#include "daemon/shard/format.h"

struct mask;

/* bytes_id() of the mask of the shard at path @shard, without opening it; 0: there is none. */
uint32_t mask_side_id(
	const struct shard_format *format, const struct shard_hint *hint, const char *shard);
/*
 * Opens the mask of the shard @b, which has @tokens tokens. *@mask is NULL if there is none;
 * with a label_mask directory that is a fault. False: @fault, as shard_open().
 */
bool mask_open(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, uint64_t tokens, struct mask **mask, struct fault *fault);
void mask_close(struct mask *mask);
const struct bytes *mask_file(const struct mask *mask);
uint32_t mask_id(const struct mask *mask);    /* bytes_id() of its file */
uint64_t mask_bytes(const struct mask *mask); /* its memory */
/*
 * Reads the mask of tokens [token, token + n). Any thread. False: @fault, as shard_read();
 * FAULT_DATA: a value is neither 0 nor 1.
 */
bool mask_read(
	const struct mask *mask, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

#endif
