/*
 * Snapshots that a session asks for. The bytes are the trainer's: they are checked against the
 * stream, then the keeper stores them as they are. An error is answered and the session goes on:
 * training does not stop because a disk is full.
 */
#ifndef TOKEND_SNAPSHOT_H
#define TOKEND_SNAPSHOT_H

#include "daemon/control/connection.h"

/* Carries out a checkpoint message of an attached connection. */
void snapshot_save(struct connection *c, const struct wire *w);

#endif
