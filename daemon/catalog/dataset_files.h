/* A dataset from its files. */
#ifndef TOKEND_DATASET_FILES_H
#define TOKEND_DATASET_FILES_H

#include "daemon/catalog/opening.h"

/* Lists the files of the dataset's path and describes each as a shard. False: o->fault. */
bool dataset_from_files(const struct opening *o);

#endif
