/*
 * A ring that a GPU reads by itself. The driver API comes through dlopen: a trainer without a GPU
 * needs no library for it, and a second CUDA runtime beside the trainer's own would give invalid
 * handles.
 *
 * Registered is this process's mapping of the slots, in chunks of at most 1 GiB that no slot
 * crosses. What is registered is unregistered before it is unmapped, and nothing that a copy reads
 * is unmapped: that is copies_free()'s business, through which every ring goes. No call here is
 * made in a child after fork().
 *
 * Every call into the driver stands between a push and a pop of the context, and tells the driver
 * that it may be made while another stream of the process is captured into a graph.
 */
#ifndef TOKEND_PIN_H
#define TOKEND_PIN_H

#include "proto/fault.h"
#include "proto/ring.h"

/* The driver, and a context of it. Belongs to a handle; its copies are gone before it. */
struct pin;

/*
 * @device: -1 for the device of the current context, else of the first one that has an active
 * primary context. The context is the current one if it is of that device, else the primary one,
 * which is kept for as long. On failure returns NULL, and @fault: no driver, a stub of one, no such
 * device.
 */
struct pin *pin_open(int device, struct fault *fault);
void pin_close(struct pin *p);
int pin_device(const struct pin *p);

/* The copies out of one ring: which slots are on their way to a GPU, and the event behind each. */
struct copies;

/* NULL: out of memory. Nothing is registered yet; unregistered memory is copied correctly, too. */
struct copies *copies_new(struct pin *p, const struct ring *ring);
/*
 * Waits for the copies that are under way, and unregisters. False: one had not ended after 10 s, so
 * the memory must stay mapped, for good.
 */
bool copies_free(struct copies *c);
/* In a child: forgets it, without a call. */
void copies_forget(struct copies *c);

/*
 * Registers the slots, all or nothing. Registering takes locks of the whole driver, so the trainers
 * of a daemon take turns, which the directory of @socket is locked for; 10 s of waiting are enough,
 * though. On failure returns false.
 */
bool copies_register(struct copies *c, const char *socket, struct fault *fault);
uint64_t copies_registered(const struct copies *c); /* bytes; 0: it is not */

/* Queues slot @s's copy to @to on @stream, and an event behind it. False: nothing is under way. */
bool copies_start(struct copies *c, uint64_t s, uint64_t to, void *stream, struct fault *fault);
/*
 * Slot @s was lent to code that may have queued copies of its own, on streams that nobody told us:
 * it is over when all is over that the context has been given so far. To ask for that ends every
 * capture into a graph that is under way in the context, and so may copies_sync(): who lends slots
 * of a registered ring captures at other times.
 */
void copies_settle(struct copies *c, uint64_t s);
bool copies_none(const struct copies *c);
bool copies_has(const struct copies *c, uint64_t s);
/* True if the first one begun is over and below @below: it is *@s, and is forgotten. In the order
 * they were begun. */
bool copies_over(struct copies *c, uint64_t below, uint64_t *s);
/* Waits for all work of the context, where a slot that was settled can be had in no other way. */
void copies_sync(struct copies *c);

#endif
