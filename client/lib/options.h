/* What tokend_attach() is called with. */
#ifndef TOKEND_OPTIONS_H
#define TOKEND_OPTIONS_H

#include "client/lib/handle.h"

/* Copies @given, which may be of another version of the struct: members it does not know are 0.
 * False if its size cannot be, or it asks for what this version does not know. */
bool options_read(struct tokend_options *o, const struct tokend_options *given);
/* 0, or EARGUMENT. */
int options_check(struct tokend *t, const struct tokend_options *o);

#endif
