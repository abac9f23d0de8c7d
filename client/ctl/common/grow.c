#include "client/ctl/common/grow.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

#include <stdlib.h>

bool ctl_grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* it is full at 0, 1, 2, 4, … items */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	*array = more;
	return true;
}
