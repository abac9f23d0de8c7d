/*
 * Failures that an input asks for: of one allocation, and of one call on a file. The linker
 * redirects the calls of the product's objects here (--wrap, tests/rules.mk).
 */
#ifndef TOKEND_FUZZ_FAIL_H
#define TOKEND_FUZZ_FAIL_H

#include <stdbool.h>
#include <stdint.h>

enum { FAIL_BYTES = 2 }; /* of an input */

/*
 * From now on allocation number plan[0] fails, and so does call number plan[1] % 64 on a file; 0:
 * none does. plan[1] / 64 chooses how: EIO, ENOSPC, EINTR or a short transfer.
 */
void fail_plan(const uint8_t plan[FAIL_BYTES]);
/* Nothing fails from now on. True: something has failed since fail_plan(). */
bool fail_end(void);
/* Has anything failed since fail_plan()? */
bool fail_happened(void);

#endif
