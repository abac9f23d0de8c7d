/* Remarks on a dataset for users. */
#ifndef TOKEND_DATASET_NOTE_H
#define TOKEND_DATASET_NOTE_H

#include "daemon/catalog/dataset.h"

/* Writes remark @i (0 to DATASET_NOTES - 1), one line, to @text. False: there is no such remark. */
enum { DATASET_NOTES = 4 };
bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes);

#endif
