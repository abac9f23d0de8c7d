/*
 * An exhaustive explorer of small concurrent programs under the memory model RC11, which is C11's
 * as repaired by Lahav et al. (PLDI 2017). It runs real object code: what it explores is compiled
 * with -fsanitize=thread, which replaces each atomic and plain access by a call, and trace.c
 * defines those calls instead of ThreadSanitizer's library.
 *
 * A state is an execution graph: the events of each thread in order (sb), the write that each read
 * reads from (rf), and the order of the writes to each word (mo). Each next operation of a thread
 * is tried with every write that it may read from, and at every place in mo, that leaves the graph
 * consistent (rules.c). A graph that was reached before is not explored again.
 *
 * Two reductions, and why they lose nothing:
 *   - An operation that reads nothing (a store, a fence) is added at once. Other threads can only
 *     gain choices by it, and its place in mo stays open to later writes.
 *   - A load that repeats the thread's previous operation exactly, as in a spin loop, repeats its
 *     result. A thread that would have seen more in the second load could have come later.
 *
 * Assumptions:
 *   - A load never reads from a store that comes after it in sb and rf (no "load buffering"). C11
 *     allows it for relaxed accesses, and no compiler does it across an acquire or a release.
 *   - A word is always accessed with the same size. The code has neither fences that are seq_cst
 * nor read-modify-writes: the program does not link with them, or it aborts.
 *   - A byte that is received on a socket happens after the send.
 *   - A release sequence continues through read-modify-writes only, as in C++20 and C23. C11 also
 *     continues it through later stores of the same thread, so it allows less.
 *
 * Plain accesses to the memory that explorer_shared() names must be ordered by happens-before. Two
 * that are not are a data race, which is reported whatever the schedule was.
 *
 * All state of a program is in memory from world_alloc(), because a choice is undone by restoring
 * that memory. malloc() and its relatives are that function in an explored program.
 */
#ifndef TESTS_EXPLORER_H
#define TESTS_EXPLORER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXPLORER_THREADS = 4 };

struct program {
	const char *name;
	void (*setup)(void);
	void (*thread[EXPLORER_THREADS])(void);
	const char *who[EXPLORER_THREADS];
	bool serves[EXPLORER_THREADS]; /* may wait for ever at the end */
	/* After each complete execution; may be NULL. */
	void (*end)(void);
};

struct exploration {
	uint64_t states, executions;
	bool failed, stopped; /* stopped: the time was up */
	char what[200];	      /* the failure: "data race", "asleep for ever", … */
};

/* Explores all executions, until the first failure. @limit_s: give up after this time; 0: never. */
struct exploration explore(const struct program *program, double limit_s);
/* Prints the execution that failed, an event a line. */
void explorer_print_failure(void);

/* ---- for setup() and the threads ---- */

void *world_alloc(size_t bytes, size_t alignment);
/* Reports plain accesses there that race. */
void explorer_shared(void *at, size_t bytes, const char *name);
/* The name of a word in a printed execution. */
void explorer_name(const void *at, const char *name);
__attribute__((format(printf, 1, 2))) void explorer_fail(const char *format, ...);

/* A byte on a socket. */
void channel_send(uint64_t *channel);
void channel_wait(uint64_t *channel);
/* Time passes until *@word, an atomic, is @least or more. Orders nothing. */
void explorer_await(const void *word, uint64_t least);

/* ---- litmus.c: programs whose outcomes are known ---- */

/* False: the explorer is wrong. */
bool litmus_run(void);

/* ---- for trace.c ---- */

enum operation_kind { LOAD, STORE, EXCHANGE, FENCE };

struct operation {
	enum operation_kind kind;
	int order;
	void *at;
	unsigned bytes;
	uint64_t value;
	uint64_t await; /* if not 0: blocks until the value read is at least this */
	uintptr_t site; /* the address after the call */
	uint64_t result;
};

/* Performs the operation, when it is this thread's turn. */
uint64_t explorer_operate(struct operation *o);
/* A plain access. */
void explorer_plain(const void *at, size_t bytes, bool write);
bool explorer_in_thread(void);

#endif
