/* Asking a daemon about its cache. */
#ifndef TOKEND_CTL_CACHE_ASK_H
#define TOKEND_CTL_CACHE_ASK_H

#include "client/ctl/online/talk.h"

#include <jansson.h>

/* Asks once: @kind and @dataset (or NULL) as in the message `cache`. Owned by the caller. NULL
 * after an error. */
json_t *ctl_cache_ask(struct ctl_link *l, const char *kind, const char *dataset);

#endif
