/*
 * What rings take out of `memory:`, and out of their user's share of it.
 *
 * A client that seeks has its next ring before it closes this one, so that a refusal leaves it
 * where it was. For that moment `memory:` counts the two as the larger of them: a config that fits
 * exactly serves an operator's mix.
 */
#ifndef TOKEND_SESSION_MEMORY_H
#define TOKEND_SESSION_MEMORY_H

#include "daemon/control/session.h"
#include "proto/fault.h"
#include "proto/ring.h"
#include "proto/wire.h"

/*
 * Sizes the ring of @s, which @w attaches, and takes its memory out of `memory:`. *@replaces: in
 * place of another ring of the same client, which ends then. False: FAULT_ATTACH for a ring that
 * cannot be, FAULT_MEMORY, passing if it fits once others leave.
 */
bool session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	bool *replaces, struct fault *fault);
/* Gives it back, if there is any. */
void session_release(struct session *s);

#endif
