/* Where documents begin in a window whose documents end with one token. */
#ifndef TOKEND_DOCUMENTS_H
#define TOKEND_DOCUMENTS_H

#include <stdint.h>

/*
 * Writes the index of each of the @n tokens that follows an @eos, ascending, to @start, which has
 * room for @n, and returns how many there are. Nothing here follows an @eos that is the last token.
 * The tokens may change meanwhile: what is written is ascending and in range whatever they are.
 */
uint32_t documents_find(
	uint32_t *start, const void *tokens, uint32_t n, uint32_t token_bytes, uint32_t eos);

#endif
