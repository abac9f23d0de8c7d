/* Destinations for a window's annotations (document starts, loss mask). NULL: not requested. */
#ifndef TOKEND_ANNOTATIONS_H
#define TOKEND_ANNOTATIONS_H

#include <stdint.h>

struct annotations {
	/* Document starts: *count token indices ≥ 1, ascending, in start[], which has room for one
	 * per token. Both are NULL or neither. */
	uint32_t *count, *start;
	uint8_t *loss_mask; /* one byte per token: 1 if it may be a label, otherwise 0 */
};

#endif
