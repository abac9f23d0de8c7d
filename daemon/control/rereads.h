/* Says in the log which bytes were damaged when they were first read, and good when they were read
 * again. */
#ifndef TOKEND_REREADS_H
#define TOKEND_REREADS_H

#include <stdint.h>

void rereads_log(void); /* from now on; before there are other threads */
uint64_t rereads_total(void);

#endif
