/*
 * Failures that an input asks for: of one allocation, of one call on a file, or a file that is
 * changed between two reads. The linker
 * redirects the calls of the product's objects here (--wrap, tests/rules.mk).
 */
#ifndef TOKEND_FUZZ_FAIL_H
#define TOKEND_FUZZ_FAIL_H

#include <stdbool.h>
#include <stdint.h>

enum { FAIL_BYTES = 2, CHANGE_BYTES = 4 }; /* of an input */

/*
 * From now on allocation number plan[0] fails, and so does call number plan[1] % 64 on a file; 0:
 * none does. plan[1] / 64 chooses how: EIO, ENOSPC, EINTR or a short transfer.
 */
void fail_plan(const uint8_t plan[FAIL_BYTES]);
/*
 * Read number plan[0] of a file gets changed bytes; 0: none does. plan[1] and plan[2] choose the
 * byte, plan[3] its bits. Call it after fail_plan().
 */
void fail_change(const uint8_t plan[CHANGE_BYTES]);
/* Nothing fails from now on. True: something has failed since fail_plan(). */
bool fail_end(void);
/* Has anything failed since fail_plan()? */
bool fail_happened(void);

#endif
