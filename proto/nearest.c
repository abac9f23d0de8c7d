#include "proto/nearest.h"

#include "proto/limits.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LIST_NAMES = 16 };

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Edit distance, in which a swap of two neighbours is one edit. SIZE_MAX if a text is too long for
 * a name. */
static size_t distance(const char *a, const char *b)
{
	size_t rows[3][LIMIT_NAME_BYTES + 1], n = strlen(a), m = strlen(b);
	size_t *row = rows[0], *above = rows[1], *before = rows[2];

	if (n > LIMIT_NAME_BYTES || m > LIMIT_NAME_BYTES)
		return SIZE_MAX;
	for (size_t j = 0; j <= m; j++)
		row[j] = j;
	for (size_t i = 1; i <= n; i++) {
		size_t *unused = before;

		before = above;
		above = row;
		row = unused;
		row[0] = i;
		for (size_t j = 1; j <= m; j++) {
			row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]),
				1 + least(above[j], row[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least(row[j], before[j - 2] + 1);
		}
	}
	return row[m];
}

const char *nearest(const char *text, const char *const *known, size_t n)
{
	const char *near = NULL;
	size_t best = SIZE_MAX;

	for (size_t i = 0; i < n; i++) {
		size_t bytes = strlen(known[i]), most = bytes / 3 > 2 ? bytes / 3 : 2;
		size_t d = distance(text, known[i]);

		if (d < best && d <= most && d < bytes) {
			best = d;
			near = known[i];
		}
	}
	return near;
}

char *nearest_list(
	char list[NEAREST_LIST_BYTES], const char *text, const char *const *known, size_t n)
{
	/* for " and N more; did you mean NAME?" */
	const size_t room = NEAREST_LIST_BYTES - LIMIT_NAME_BYTES - 64;
	const char *near = nearest(text, known, n);
	size_t used = 0, i = 0;

	list[0] = 0;
	for (; i < n && i < LIST_NAMES && used + strlen(known[i]) + 2 < room; i++)
		used += (size_t)snprintf(
			list + used, NEAREST_LIST_BYTES - used, "%s%s", i ? ", " : "", known[i]);
	if (i < n)
		used += (size_t)snprintf(
			list + used, NEAREST_LIST_BYTES - used, " and %zu more", n - i);
	if (near)
		snprintf(list + used, NEAREST_LIST_BYTES - used, "; did you mean %s?", near);
	return list;
}
