/*
 * Neighbouring ranges of one object, merged into GETs. Pure.
 */
#ifndef TOKEND_STORE_COALESCE_H
#define TOKEND_STORE_COALESCE_H

#include <stddef.h>
#include <stdint.h>

enum { COALESCE_GAP_BYTES = 16 * 1024, COALESCE_MOST_BYTES = 1024 * 1024 };

struct span {
	uint64_t object; /* equal for ranges of one object only */
	uint64_t at;
	size_t n;
	void *want;
	unsigned order; /* of arrival */
	unsigned group; /* set: spans with the same number belong to one GET */
};

/*
 * Sorts @spans by object and offset, and numbers their groups from 0. A group's bytes, with its
 * gaps, are at most COALESCE_MOST_BYTES unless it is one range. Returns the number of groups.
 */
unsigned coalesce(struct span *spans, unsigned n);

#endif
