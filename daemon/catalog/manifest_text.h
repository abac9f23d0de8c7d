/* The text of a manifest, in a file or in a store. */
#ifndef TOKEND_MANIFEST_TEXT_H
#define TOKEND_MANIFEST_TEXT_H

#include "daemon/store/store.h"

#include <stdio.h>

/*
 * Opens @path, a file or a URL. *@text: NULL, or what the caller frees after the file. @stores may
 * be NULL. On failure returns NULL and @fault, without the path.
 */
FILE *manifest_text_open(const char *path, struct stores *stores, char **text, struct fault *fault);

#endif
