/* Faults of the config file. */
#ifndef TOKEND_REFUSE_H
#define TOKEND_REFUSE_H

#include "proto/fault.h"

/*
 * Fills @fault for a value of the config that cannot be used: FAULT_ARGUMENT, @field, @index (which
 * entry of a list the field is about, or FAULT_NO_INDEX), and the whole line that users see,
 * "FILE:LINE: FIELD: TEXT". Nobody puts anything before it. Always false.
 */
__attribute__((format(printf, 6, 7))) bool config_refuse(struct fault *fault, const char *file,
	int line, const char *field, int index, const char *text, ...);
/* The same for what could not be allocated: FAULT_MEMORY. Always false. */
bool config_refuse_memory(
	struct fault *fault, const char *file, int line, const char *field, int index);

#endif
