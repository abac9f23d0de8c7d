/* Every error has a code, and one line of text. */
#ifndef TOKEND_FUZZ_CHECK_FAULT_H
#define TOKEND_FUZZ_CHECK_FAULT_H

#include "proto/fault.h"

#include <assert.h>
#include <string.h>

static inline void check_fault(const struct fault *fault)
{
	assert(fault->code > FAULT_NONE && fault->code < FAULT_CODES);
	assert(memchr(fault->field, 0, sizeof(fault->field)));
	assert(fault->text[0] && memchr(fault->text, 0, sizeof(fault->text)));
	assert(!strchr(fault->text, '\n') && !strchr(fault->field, '\n'));
}

#endif
