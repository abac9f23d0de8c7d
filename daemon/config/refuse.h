/* Faults of a config file. */
#ifndef TOKEND_REFUSE_H
#define TOKEND_REFUSE_H

#include "proto/fault.h"

/*
 * Sets @fault (FAULT_ARGUMENT) for a value that cannot be used. Its text is the whole line that
 * users see, "FILE:LINE: FIELD: TEXT". @index: the list entry that the field is about, or
 * FAULT_NO_INDEX. Always false.
 */
__attribute__((format(printf, 6, 7))) bool config_refuse(struct fault *fault, const char *file,
	int line, const char *field, int index, const char *text, ...);
/* The same for a failed allocation: FAULT_MEMORY. Always false. */
bool config_refuse_memory(
	struct fault *fault, const char *file, int line, const char *field, int index);

#endif
