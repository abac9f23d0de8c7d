/* Batches that go to a GPU. */
#ifndef TOKEND_GPU_COPY_H
#define TOKEND_GPU_COPY_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* Returns the slots whose copies are over, if they were handed out. */
void copy_collect(struct tokend *t);
/* Registers @m with the GPU's driver. On failure the mapping stays as it was, and the handle's
 * error says why. */
bool copy_pin(struct tokend *t, struct mapping *m);

#endif
