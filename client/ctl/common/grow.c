#include "client/ctl/common/grow.h"

#include "client/ctl/common/error.h"

#include <stdlib.h>

bool ctl_grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* 0, 1, 2, 4, … are full */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more) {
		ctl_fail("out of memory");
		return false;
	}
	*array = more;
	return true;
}
