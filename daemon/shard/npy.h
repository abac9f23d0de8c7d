/* NumPy's .npy as a loss mask. npy.c also has the format for tokens. */
#ifndef TOKEND_SHARD_NPY_H
#define TOKEND_SHARD_NPY_H

#include "daemon/shard/bytes.h"

/* Whether the file begins with NumPy's magic. */
bool npy_recognise(const struct bytes *b);
/*
 * Whether the file holds an array of @n bools. *@data_at: offset of the first one. False: @fault,
 * without the path.
 */
bool npy_bools(const struct bytes *b, uint64_t n, uint64_t *data_at, struct fault *fault);

#endif
