/*
 * The places where credentials come from. They run in helper threads, and may block.
 */
#ifndef TOKEND_STORE_PROVIDERS_H
#define TOKEND_STORE_PROVIDERS_H

#include "daemon/store/seek.h"

/* Asks the providers of the store in turn. Never PROVIDED_NOTHING. */
enum provided providers_search(struct seek *search);

#endif
