/* Copies of batches to a GPU. */
#ifndef TOKEND_GPU_COPY_H
#define TOKEND_GPU_COPY_H

#include "client/lib/handle.h"
#include "client/lib/map.h"

/* Releases the taken slots whose copies have ended. */
void copy_collect(struct tokend *t);
/* Registers @m with the GPU's driver. On failure returns false; the mapping is unchanged, and the
 * handle's last failure says why. */
bool copy_pin(struct tokend *t, struct mapping *m);

#endif
