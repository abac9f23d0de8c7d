/* NumPy's .npy where it holds no tokens: loss masks. */
#ifndef TOKEND_SHARD_NPY_H
#define TOKEND_SHARD_NPY_H

#include "daemon/shard/bytes.h"

/* Does it begin as one? */
bool npy_recognise(const struct bytes *b);
/* Are they @n bools in a row? *@data_at: where the first one is. False: @fault, without the path.
 */
bool npy_bools(const struct bytes *b, uint64_t n, uint64_t *data_at, struct fault *fault);

#endif
