/*
 * Copies from a ring to a GPU. The driver API is loaded with dlopen(): a trainer without a GPU
 * needs no CUDA library. A second CUDA runtime next to the trainer's own would give invalid
 * handles.
 *
 * This process's mapping of the slots is registered, in chunks of at most 1 GiB that no slot
 * crosses. copies_free() unregisters memory before it is unmapped, and reports memory that is still
 * being copied. No function here may be called in a forked child.
 *
 * Every call into the driver pushes the context and pops it afterwards. Capture mode is relaxed
 * meanwhile, so calls are allowed while another stream of the process is captured into a graph.
 */
#ifndef TOKEND_PIN_H
#define TOKEND_PIN_H

#include "proto/fault.h"
#include "proto/ring.h"

/* The driver and one of its contexts. A handle owns it, and frees it after its copies. */
struct pin;

/*
 * @device: number of the GPU. -1: that of the current context, otherwise the first GPU with an
 * active primary context. Uses the current context if it is one of that device, otherwise the
 * primary one, which is retained until pin_close(). On failure returns NULL and sets @fault: no
 * driver, only a stub of it, or no such device.
 */
struct pin *pin_open(int device, struct fault *fault);
void pin_close(struct pin *p);
int pin_device(const struct pin *p);

/* The copies from one ring that have not ended, and the event after each. */
struct copies;

/* Does not register the memory: copies work without, but slower. NULL: out of memory. */
struct copies *copies_new(struct pin *p, const struct ring *ring);
/*
 * Waits for copies to end, unregisters and frees. Returns false if a copy has not ended after 10 s:
 * the memory must then stay mapped until the process exits.
 */
bool copies_free(struct copies *c);
/* Frees without a call into the driver, for a forked child. */
void copies_forget(struct copies *c);

/*
 * Registers all slots or none. Registering takes locks of the whole driver, so a daemon's trainers
 * take turns: each locks the directory of @socket, after waiting at most 10 s for the others. On
 * failure returns false and sets @fault (FAULT_MEMORY: the driver reached a limit).
 */
bool copies_register(struct copies *c, const char *socket, struct fault *fault);
uint64_t copies_registered(const struct copies *c); /* in bytes; 0: not registered */

/* Queues a copy of slot @s to device address @to on @stream, and an event after it. On failure
 * returns false, and no copy is queued. */
bool copies_start(struct copies *c, uint64_t s, uint64_t to, void *stream, struct fault *fault);
/*
 * For slot @s that was lent to code that may have queued copies on unknown streams. It counts as
 * copied when all work queued in the context so far has ended. Both this call and copies_sync() may
 * abort graph captures in the context: trainers that lend slots of a registered ring must not
 * capture at the same time.
 */
void copies_settle(struct copies *c, uint64_t s);
/* True if no copy is queued. */
bool copies_none(const struct copies *c);
/* True if slot @s is being copied. */
bool copies_has(const struct copies *c, uint64_t s);
/* If the copy queued first has ended and its slot is below @below, removes it from the queue, sets
 * *@s to its slot and returns true. */
bool copies_over(struct copies *c, uint64_t below, uint64_t *s);
/* Waits for all work of the context, if a settled slot has no event of its own. */
void copies_sync(struct copies *c);

#endif
