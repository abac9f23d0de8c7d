/* Memory for jansson, json_set_alloc_funcs(), that runs out. */
#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H

#include <errno.h>
#include <stdlib.h>

static unsigned allocations; /* that still succeed */

static void *allocate(size_t n)
{
	if (allocations-- > 0)
		return malloc(n);
	allocations = 0;
	errno = ENOMEM;
	return NULL;
}

#endif
