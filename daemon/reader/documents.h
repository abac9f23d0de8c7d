/* Finds document starts in a window, by the token that ends a document. */
#ifndef TOKEND_DOCUMENTS_H
#define TOKEND_DOCUMENTS_H

#include <stdint.h>

/*
 * Writes the index of each of the @n tokens that follows an @eos to @start, ascending. @start has
 * room for @n. Returns how many there are. An @eos that is the last token does not count. The
 * tokens may change meanwhile: the indices ascend and are in range in any case.
 */
uint32_t documents_find(
	uint32_t *start, const void *tokens, uint32_t n, uint32_t token_bytes, uint32_t eos);

#endif
