/* Remarks on a dataset for users. */
#ifndef TOKEND_DATASET_NOTE_H
#define TOKEND_DATASET_NOTE_H

#include "daemon/catalog/dataset.h"

/* A doubt is a remark that trainers are warned of: the tokens may not be the ones that are meant.
 */
enum dataset_note { NOTE_NONE, NOTE_FACT, NOTE_DOUBT };

/* Writes remark @i (0 to DATASET_NOTES - 1), one line, to @text, or returns NOTE_NONE. */
enum { DATASET_NOTES = 9 };
enum dataset_note dataset_note(
	const struct dataset *dataset, unsigned i, char *text, size_t text_bytes);

#endif
