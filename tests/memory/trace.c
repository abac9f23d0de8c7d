/*
 * The functions that gcc calls for accesses in code compiled with -fsanitize=thread. Outside the
 * threads of an explored program, the accesses are plain ones.
 */
#include "tests/memory/explorer.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITE ((uintptr_t)__builtin_return_address(0))

/* ---- plain accesses ---- */

#define ACCESS(name, n, writes)                                                                    \
	void __tsan_##name##n(void *at)                                                            \
	{                                                                                          \
		explorer_plain(at, n, writes);                                                     \
	}
#define PLAIN(n)                                                                                   \
	ACCESS(read, n, false)                                                                     \
	ACCESS(write, n, true)                                                                     \
	ACCESS(unaligned_read, n, false)                                                           \
	ACCESS(unaligned_write, n, true)
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_read_range(void *at, size_t bytes)
{
	explorer_plain(at, bytes, false);
}

void __tsan_write_range(void *at, size_t bytes)
{
	explorer_plain(at, bytes, true);
}

void __tsan_init(void)
{
}

void __tsan_func_entry(void *at)
{
	(void)at;
}

void __tsan_func_exit(void)
{
}

/* ---- atomics ---- */

static uint64_t operate(struct operation o)
{
	uint64_t before = 0;

	if (explorer_in_thread())
		return explorer_operate(&o);
	memcpy(&before, o.at, o.bytes);
	if (o.kind == STORE)
		memcpy(o.at, &o.value, o.bytes);
	return before;
}

uint64_t __tsan_atomic64_load(const uint64_t *at, int order)
{
	return operate((struct operation){.kind = LOAD,
		.order = order,
		.at = (void *)at,
		.bytes = sizeof(*at),
		.site = SITE});
}

void __tsan_atomic64_store(uint64_t *at, uint64_t value, int order)
{
	operate((struct operation){.kind = STORE,
		.order = order,
		.at = at,
		.bytes = sizeof(*at),
		.value = value,
		.site = SITE});
}

/* The code that is explored has none. */
int __tsan_atomic64_compare_exchange_strong(
	uint64_t *at, uint64_t *expected, uint64_t value, int order, int failed)
{
	(void)at, (void)expected, (void)value, (void)order, (void)failed;
	explorer_fail("a read-modify-write");
	return 0;
}

void __tsan_atomic_thread_fence(int order)
{
	struct operation o = {.kind = FENCE, .order = order, .site = SITE};

	if (explorer_in_thread())
		explorer_operate(&o);
}

/* ---- functions of libc, which explored code is compiled to call by these names ---- */

void *traced_calloc(size_t n, size_t bytes)
{
	return world_alloc(n * bytes, 64);
}

void *traced_aligned_alloc(size_t alignment, size_t bytes)
{
	return world_alloc(bytes, alignment);
}

void traced_free(void *at)
{
	(void)at;
}

void *traced_memset(void *at, int value, size_t bytes)
{
	explorer_plain(at, bytes, true);
	return memset(at, value, bytes);
}

void *traced_memcpy(void *to, const void *from, size_t bytes)
{
	explorer_plain(from, bytes, false);
	explorer_plain(to, bytes, true);
	return memcpy(to, from, bytes);
}

void traced_assert_fail(const char *what, const char *file, unsigned line, const char *function)
{
	if (explorer_in_thread())
		explorer_fail("assertion: %s (%s:%u, %s)", what, file, line, function);
	fprintf(stderr, "assertion: %s (%s:%u, %s)\n", what, file, line, function);
	abort();
}
