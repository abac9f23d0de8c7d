/*
 * A dataset, written for another process of the same program, in memory: the next image of a daemon
 * that reloads. So it needs no format that others understand.
 */
#ifndef TOKEND_DATASET_SAVED_H
#define TOKEND_DATASET_SAVED_H

#include "daemon/catalog/opening.h"

#include <stdio.h>

/* Writes a dataset that is not in a store. False: errno. */
bool dataset_save(struct dataset *dataset, FILE *to);
/* Fills o->dataset with what dataset_save() wrote to o->saved. False: o->fault. */
bool dataset_from_saved(const struct opening *o);

#endif
