/*
 * tokend --check: tries what would fail later. A ring of each stream must fit into memory:.
 * state_dir and the directory of the socket must be writable. A batch of each stream is read as a
 * session would read it. The plan of the streams goes to stdout, a line for each fault to stderr.
 */
#ifndef TOKEND_CHECK_H
#define TOKEND_CHECK_H

#include "daemon/catalog/catalog.h"

/* @stores: of the catalog's datasets. Returns the exit code. */
int check_run(const struct catalog *catalog, struct stores *stores);

#endif
