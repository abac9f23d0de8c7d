#include "client/ctl/common/run_name.h"

#include "client/ctl/common/error.h"

#include <stdio.h>
#include <string.h>

enum { LISTED = 16 };

/* The first name after @last, in alphabetic order, that begins with @typed. NULL: none. */
static const char *next(const char *const *names, unsigned n, const char *typed, const char *last)
{
	const char *best = NULL;

	for (unsigned i = 0; i < n; i++)
		if (strncmp(names[i], typed, strlen(typed)) == 0 &&
			(!last || strcmp(names[i], last) > 0) &&
			(!best || strcmp(names[i], best) < 0))
			best = names[i];
	return best;
}

static void refuse(const char *const *names, unsigned n, const char *typed)
{
	const char *name = NULL;
	char list[1200] = "";
	size_t used = 0;

	for (unsigned i = 0; i < LISTED && (name = next(names, n, typed, name)); i++)
		used += (size_t)snprintf(
			list + used, sizeof(list) - used, "%s%s", i ? ", " : "", name);
	if (name && next(names, n, typed, name))
		snprintf(list + used, sizeof(list) - used, ", …");
	ctl_fail("--run %s: begins the names of several runs: %s; give more of the name", typed,
		list);
}

int ctl_run_match(const char *const *names, unsigned n, const char *typed)
{
	int match = RUN_UNKNOWN;

	for (unsigned i = 0; i < n; i++)
		if (strcmp(names[i], typed) == 0)
			return (int)i;
	for (unsigned i = 0; i < n; i++) {
		if (strncmp(names[i], typed, strlen(typed)) != 0)
			continue;
		if (match >= 0) {
			refuse(names, n, typed);
			return RUN_AMBIGUOUS;
		}
		match = (int)i;
	}
	return match;
}
