/*
 * A number for this process, by which the daemon knows that two sessions belong to one process:
 * where client and daemon are in PID namespaces of their own, PIDs do not tell.
 */
#ifndef TOKEND_PROCESS_H
#define TOKEND_PROCESS_H

#include <stdint.h>

/* Random, and another one in every process, children included. 0: it could not be made. */
uint64_t process_number(void);

#endif
