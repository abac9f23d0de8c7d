/* Sums of the pieces of a dataset in a store. */
#ifndef TOKEND_DATASET_SUMS_H
#define TOKEND_DATASET_SUMS_H

#include "daemon/catalog/catalog.h"

/*
 * Reads the sums of all datasets in piece mode that have some: the file or URL `sums:`, otherwise
 * the file next to a manifest on a disk. False: @fault, as config_refuse().
 */
bool dataset_sums_read(struct catalog *catalog, struct stores *stores, struct fault *fault);

#endif
