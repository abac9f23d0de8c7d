/* The threads that share a ring. */
#ifndef TESTS_MEMORY_RING_SIDES_H
#define TESTS_MEMORY_RING_SIDES_H

#include "tests/memory/explorer.h"

/* A ring of @slots, a stream of @batches. The client keeps @hold batches, and has taken @taken
 * already. The daemon has @depth reads in flight. */
void ring_setup(uint32_t slots, uint64_t batches, uint64_t hold, uint64_t taken, unsigned depth);

/* The daemon's threads, and trainers. */
void ring_data(void);
void ring_looking_data(void);
void ring_control(void);
void ring_client(void);
void ring_polling_client(void);
void ring_computing_client(void);
void ring_status(void);

/* The daemon says what it waits for, and the trainer asks. */
void ring_reason_setup(void);
void ring_saying(void);
void ring_asking(void);

#endif
