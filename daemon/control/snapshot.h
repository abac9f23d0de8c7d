/*
 * Saving snapshots. The cursor's bytes come from the trainer. They are checked against the stream,
 * then the keeper stores them unchanged. After an error the session continues: a full disk does not
 * stop training.
 */
#ifndef TOKEND_SNAPSHOT_H
#define TOKEND_SNAPSHOT_H

#include "daemon/control/connection.h"

/* Handles a checkpoint message of an attached connection. */
void snapshot_save(struct connection *c, const struct wire *w);

#endif
