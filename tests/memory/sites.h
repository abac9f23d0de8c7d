/* The places of atomic operations, and the weakening of one of them. */
#ifndef TESTS_SITES_H
#define TESTS_SITES_H

#include "tests/memory/explorer.h"

struct site {
	char line[96]; /* "proto/ring.h:210" */
	char function[64];
	enum operation_kind kind; /* of the last operation there */
	int order;		  /* -1: not executed yet */
};

/* Finds all places in this program, with binutils. */
bool sites_find(void);
const struct site *sites_all(unsigned *n);
/* From now on @site, or none if it is NULL, has the memory order @order. */
void sites_weaken(const struct site *site, int order);

#endif
