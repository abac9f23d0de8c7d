/* Counts faults of the catalogue that inputs have injected; written once, at the end. */
#ifndef TOKEND_FUZZ_COUNT_H
#define TOKEND_FUZZ_COUNT_H

#include "tests/unit/injected.h"

enum { COUNT_ROWS = 64 };

static uint64_t count_of[COUNT_ROWS];

static void count_write(void)
{
	for (unsigned row = 0; row < COUNT_ROWS; row++)
		injected(row, count_of[row]);
}

/* Call it after the fault of @row was seen and handled. */
static inline void count(unsigned row)
{
	static bool begun;

	if (!begun)
		atexit(count_write);
	begun = true;
	count_of[row]++;
}

#endif
