/*
 * A GPU that reads a ring by itself. The driver API comes through dlopen(): a trainer without a GPU
 * needs no library for it, and a second CUDA runtime next to the trainer's own would give invalid
 * handles.
 *
 * This process's mapping of the slots is registered, in chunks of at most 1 GiB that no slot
 * crosses. Memory is unregistered before it is unmapped, and memory that a copy reads is not
 * unmapped: copies_free() sees to both, for every ring. No function here is called in a child after
 * fork().
 *
 * Every call into the driver is made between a push and a pop of the context, and tells the driver
 * that it is allowed while another stream of the process is captured into a graph.
 */
#ifndef TOKEND_PIN_H
#define TOKEND_PIN_H

#include "proto/fault.h"
#include "proto/ring.h"

/* The driver and a context of it. It belongs to a handle and outlives its copies. */
struct pin;

/*
 * @device: -1 for the device of the current context, or if there is none for the first device that
 * has an active primary context. The context is the current one if it is of that device; otherwise
 * the primary one, which is retained until pin_close(). On failure returns NULL, and @fault says
 * that there is no driver, only a stub of one, or no such device.
 */
struct pin *pin_open(int device, struct fault *fault);
void pin_close(struct pin *p);
int pin_device(const struct pin *p);

/* The copies out of one ring: which slots are on their way to a GPU, and the event after each. */
struct copies;

/* Nothing is registered yet; copies out of unregistered memory are correct, too. NULL: out of
 * memory. */
struct copies *copies_new(struct pin *p, const struct ring *ring);
/*
 * Waits for the copies that are under way, and unregisters. Returns false if one had not ended
 * after 10 s: the memory must then stay mapped for good.
 */
bool copies_free(struct copies *c);
/* In a child: frees it without a call into the driver. */
void copies_forget(struct copies *c);

/*
 * Registers the slots, all or nothing. Registering takes locks of the whole driver, so the trainers
 * of a daemon take turns: each locks the directory of @socket meanwhile, and waits for that 10 s at
 * most. On failure returns false, and @fault (FAULT_MEMORY: the driver reached a limit).
 */
bool copies_register(struct copies *c, const char *socket, struct fault *fault);
uint64_t copies_registered(const struct copies *c); /* bytes; 0: it is not */

/* Queues the copy of slot @s to @to on @stream, and an event after it. On failure returns false,
 * and nothing is under way. */
bool copies_start(struct copies *c, uint64_t s, uint64_t to, void *stream, struct fault *fault);
/*
 * Slot @s was lent to code that may have queued copies of its own on streams that are not known.
 * It is over when all work is over that the context has been given so far. Asking the driver for
 * that ends every capture into a graph that is under way in the context, and so may copies_sync():
 * trainers that lend slots of a registered ring capture at other times.
 */
void copies_settle(struct copies *c, uint64_t s);
bool copies_none(const struct copies *c);
bool copies_has(const struct copies *c, uint64_t s);
/* True if the copy that was begun first is over and its slot is below @below: *@s is the slot, and
 * the copy is forgotten. */
bool copies_over(struct copies *c, uint64_t below, uint64_t *s);
/* Waits for all work of the context, if a settled slot cannot come back in another way. */
void copies_sync(struct copies *c);

#endif
