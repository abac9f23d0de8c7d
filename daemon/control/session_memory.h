/*
 * Counts ring memory against `memory:` and each user's cap.
 *
 * A client that seeks gets its next ring before it closes the present one, so that it can continue
 * if the attach is refused. Meanwhile `memory:` counts the larger ring of the two only, so that an
 * operator's mix needs no additional memory.
 */
#ifndef TOKEND_SESSION_MEMORY_H
#define TOKEND_SESSION_MEMORY_H

#include "daemon/control/session.h"
#include "proto/fault.h"
#include "proto/ring.h"
#include "proto/wire.h"

/*
 * Computes the ring's @geometry from the attach message @w, and reserves its memory. Sets
 * *@replaces if the ring replaces another one of the same client. False: FAULT_ATTACH for an
 * invalid geometry; FAULT_MEMORY, passing if the ring will fit when other sessions have ended.
 */
bool session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	bool *replaces, struct fault *fault);
/* The geometry of a ring of the stream. *@slots: 0 for the default, which is then set. False:
 * @fault. */
bool session_ring(const struct stream *stream, uint64_t micro_batch, uint64_t *slots,
	struct ring_geometry *geometry, struct fault *fault);
/* Returns the memory, if any is reserved. */
void session_release(struct session *s);

#endif
