/*
 * A random number of this process, which tells the daemon that two sessions belong to one process.
 * PIDs cannot: client and daemon may be in different PID namespaces.
 */
#ifndef TOKEND_PROCESS_H
#define TOKEND_PROCESS_H

#include <stdint.h>

/* Different in every process, forked children included. 0: no random bytes were available. */
uint64_t process_number(void);

#endif
