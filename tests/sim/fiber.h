/*
 * Threads of the simulated world: stacks that one real thread switches between, and virtual time.
 *
 * A fiber runs until it blocks or yields. Which ready fiber is next is drawn from the seed. When
 * none is ready, the clock jumps to the next timer.
 */
#ifndef TOKEND_SIM_FIBER_H
#define TOKEND_SIM_FIBER_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) /* clang 14 has no other sign */
#define ASAN 1
#endif
#endif

struct proc;
struct fiber;

#define NEVER  INT64_MAX
#define MICRO  INT64_C(1000)
#define MILLI  INT64_C(1000000)
#define SECOND INT64_C(1000000000)

extern int64_t fiber_now;	    /* virtual ns, monotonic */
extern uint64_t fiber_switches;	    /* slices that ran: the simulator's events */
extern uint64_t fiber_interrupts;   /* of code, at a branch */
extern uint64_t fiber_trace;	    /* hash of the history so far */
extern struct fiber *fiber_current; /* NULL: the simulator itself */

/* The process of the current fiber; NULL: the simulator itself. */
struct proc *fiber_proc(void);

struct fiber *fiber_new(struct proc *proc, void (*main)(void *), void *argument);
/* Ends the current fiber. */
__attribute__((noreturn)) void fiber_exit(void);
/* Ends all fibers of @proc. If the current one is among them, it does not return. */
void fiber_kill(struct proc *proc);
/* Lets other fibers run. */
void fiber_yield(void);
/* Waits until fiber_wake(@on) or @until. False: the time is over. */
bool fiber_block(const void *on, int64_t until);
void fiber_wake(const void *on);
void fiber_sleep(int64_t ns);
/* Is a fiber with this number still alive? */
unsigned fiber_count(const struct proc *proc);

/* Calls @fire(@argument) at @at, outside all fibers. */
void timer_at(int64_t at, void (*fire)(void *), void *argument);

/* Runs until @until or until @stop() returns true. */
void fiber_run(int64_t until, bool (*stop)(void));

#endif
