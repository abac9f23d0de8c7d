#ifndef TOKEND_CTL_GROW_H
#define TOKEND_CTL_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for one more item of @bytes in *@array, which has @n items and grows by doubling. On
 * failure prints a message and returns false. */
bool ctl_grow(void **array, size_t n, size_t bytes);

#endif
