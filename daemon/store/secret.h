/*
 * Memory for secrets: own pages, which core dumps and child processes leave out, and which are
 * wiped. Nothing else may hold a secret for longer than a call.
 */
#ifndef TOKEND_STORE_SECRET_H
#define TOKEND_STORE_SECRET_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>

/* @bytes of zeros. NULL: out of memory. */
void *secret_new(size_t bytes);
/* Wipes and frees. NULL: does nothing. */
void secret_free(void *secret, size_t bytes);
/* Reads a file of fewer than @bytes into @text, with a zero after it. Returns its length. Negative:
 * @fault. */
long secret_read(const char *path, char *text, size_t bytes, struct fault *fault);
/* For libraries that copy secrets: free() and realloc() of memory of malloc(), which wipe it,
 * except while the calling thread says that it gives them none. */
void secret_heap_harmless(bool is);
void secret_heap_free(void *at);
void *secret_heap_realloc(void *at, size_t bytes);

#endif
