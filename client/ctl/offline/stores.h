/* Stores that a tool reads: a tool waits for a fault that can heal, but not for ever. */
#ifndef TOKEND_CTL_STORES_H
#define TOKEND_CTL_STORES_H

#include "daemon/config/config.h"
#include "daemon/store/store.h"

enum { CTL_GETS = 64 }; /* reads of a store that a tool makes at once */

/* @config may be NULL: only the environment says where stores are. It outlives the stores. NULL:
 * @fault. */
struct stores *ctl_stores_open(const struct config *config, struct fault *fault);
/* Does any dataset of the stream have a URL? @stream NULL: of any stream. */
bool ctl_stores_needed(const struct config *config, const char *stream);

#endif
