/* Programs whose outcomes are known. */
#ifndef TESTS_LITMUS_H
#define TESTS_LITMUS_H

#include <stdbool.h>

struct litmus {
	const char *name;
	void (*thread[4])(void);
	bool (*outcome)(const int *r);
	/* ALLOWED: seen. FORBIDDEN: not seen. FAILS: a race, or a thread that sleeps for ever. */
	enum { ALLOWED, FORBIDDEN, FAILS } expected;
};

/* False: the explorer is wrong. */
bool litmus_run(void);

#endif
