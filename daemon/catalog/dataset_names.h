/* Doubts about shards by their names: validation data, copies and partial files among others. */
#ifndef TOKEND_DATASET_NAMES_H
#define TOKEND_DATASET_NAMES_H

#include "daemon/catalog/dataset.h"

/* Fills dataset->names, which stays empty if there is no doubt. */
void dataset_doubt_names(struct dataset *dataset);

#endif
