/* What users should know of a dataset. */
#ifndef TOKEND_DATASET_NOTE_H
#define TOKEND_DATASET_NOTE_H

#include "daemon/catalog/dataset.h"

/* Note @i of a dataset, one line. False: there is none of that number. */
enum { DATASET_NOTES = 4 };
bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes);

#endif
