/* Destinations for a window's annotations (document starts, loss mask). NULL: not requested. */
#ifndef TOKEND_ANNOTATIONS_H
#define TOKEND_ANNOTATIONS_H

#include <stdint.h>

struct annotations {
	/* Where documents begin, both or neither: *count indices of tokens from 1 on, ascending, in
	 * start, which has room for one a token. */
	uint32_t *count, *start;
	uint8_t *loss_mask; /* a byte a token: 1 if it may be a label, otherwise 0 */
};

#endif
