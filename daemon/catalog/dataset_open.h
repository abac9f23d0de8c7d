/* Opens a dataset of the config. */
#ifndef TOKEND_DATASET_OPEN_H
#define TOKEND_DATASET_OPEN_H

#include "daemon/catalog/opening.h"

/*
 * Fills *o->dataset, whose `config` is set, from files or from a manifest. On failure returns false
 * and o->fault; the caller calls dataset_close() in either case.
 */
bool dataset_open(const struct opening *o);

#endif
