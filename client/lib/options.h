/* The arguments of tokend_attach(). */
#ifndef TOKEND_OPTIONS_H
#define TOKEND_OPTIONS_H

#include "client/lib/handle.h"

/* Copies @given, which may be another version of the struct: members that it lacks become 0. False
 * if its size is invalid, or if it sets a member that this version does not have. */
bool options_read(struct tokend_options *o, const struct tokend_options *given);
/* Returns 0 or EARGUMENT. */
int options_check(struct tokend *t, const struct tokend_options *o);

#endif
