/* The entries of `stores:` that name files and profiles of this machine. */
#ifndef TOKEND_STORE_SETTINGS_H
#define TOKEND_STORE_SETTINGS_H

#include "daemon/config/config.h"
#include "daemon/store/url.h"
#include "proto/fault.h"

/* Checks that what they name exists and can be used. @config may be NULL. False: @fault, the line
 * that users see. */
bool settings_check(const struct config *config, struct fault *fault);
/* Notes about a store of this place that others could read secrets of: whether its credentials go
 * over the network unencrypted, or other users may read the file that contains them. */
void settings_note(
	const struct url_place *place, void (*log)(void *context, const char *line), void *context);

#endif
