/* Opens a dataset by describing its files. */
#ifndef TOKEND_DATASET_FILES_H
#define TOKEND_DATASET_FILES_H

#include "daemon/catalog/opening.h"

/* Lists the shards at the dataset's path and describes each. False: o->fault. */
bool dataset_from_files(const struct opening *o);

#endif
