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
	void __tsan_##name##n(void *at);                                                           \
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

void __tsan_read_range(void *at, size_t bytes);
void __tsan_read_range(void *at, size_t bytes)
{
	explorer_plain(at, bytes, false);
}

void __tsan_write_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes)
{
	explorer_plain(at, bytes, true);
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *at);
void __tsan_func_entry(void *at)
{
	(void)at;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

/* ---- atomics ---- */

static uint64_t operate(struct operation o)
{
	uint64_t before = 0;

	o.order = sites_order(o.site, o.kind, o.order);
	if (explorer_in_thread())
		return explorer_operate(&o);
	memcpy(&before, o.at, o.bytes);

	uint64_t after = o.kind == ADD ? before + o.value : o.value;

	if (o.kind != LOAD && (o.kind != COMPARE || before == o.expected))
		memcpy(o.at, &after, o.bytes);
	return before;
}

#define OPERATE(...)                                                                               \
	operate((struct operation){.order = order,                                                 \
		.at = (void *)at,                                                                  \
		.bytes = sizeof(*at),                                                              \
		.site = SITE,                                                                      \
		__VA_ARGS__})

#define ATOMICS(bits, type)                                                                        \
	type __tsan_atomic##bits##_load(const type *at, int order);                                \
	type __tsan_atomic##bits##_load(const type *at, int order)                                 \
	{                                                                                          \
		return (type)OPERATE(.kind = LOAD);                                                \
	}                                                                                          \
	void __tsan_atomic##bits##_store(type *at, type value, int order);                         \
	void __tsan_atomic##bits##_store(type *at, type value, int order)                          \
	{                                                                                          \
		OPERATE(.kind = STORE, .value = value);                                            \
	}                                                                                          \
	type __tsan_atomic##bits##_exchange(type *at, type value, int order);                      \
	type __tsan_atomic##bits##_exchange(type *at, type value, int order)                       \
	{                                                                                          \
		return (type)OPERATE(.kind = EXCHANGE, .value = value);                            \
	}                                                                                          \
	type __tsan_atomic##bits##_fetch_add(type *at, type value, int order);                     \
	type __tsan_atomic##bits##_fetch_add(type *at, type value, int order)                      \
	{                                                                                          \
		return (type)OPERATE(.kind = ADD, .value = value);                                 \
	}                                                                                          \
	int __tsan_atomic##bits##_compare_exchange_strong(                                         \
		type *at, type *expected, type value, int order, int failed);                      \
	int __tsan_atomic##bits##_compare_exchange_strong(                                         \
		type *at, type *expected, type value, int order, int failed)                       \
	{                                                                                          \
		type was = (type)OPERATE(.kind = COMPARE, .order_failed = failed, .value = value,  \
			.expected = *expected);                                                    \
		bool same = was == *expected;                                                      \
                                                                                                   \
		*expected = was;                                                                   \
		return same;                                                                       \
	}
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order)
{
	struct operation o = {
		.kind = FENCE, .order = sites_order(SITE, FENCE, order), .site = SITE};

	if (explorer_in_thread())
		explorer_operate(&o);
}

/* ---- functions of libc, which explored code is compiled to call by these names ---- */

void *traced_calloc(size_t n, size_t bytes);
void *traced_calloc(size_t n, size_t bytes)
{
	return world_alloc(n * bytes, 64);
}

void *traced_aligned_alloc(size_t alignment, size_t bytes);
void *traced_aligned_alloc(size_t alignment, size_t bytes)
{
	return world_alloc(bytes, alignment);
}

void traced_free(void *at);
void traced_free(void *at)
{
	(void)at;
}

void *traced_memset(void *at, int value, size_t bytes);
void *traced_memset(void *at, int value, size_t bytes)
{
	explorer_plain(at, bytes, true);
	return memset(at, value, bytes);
}

void *traced_memcpy(void *to, const void *from, size_t bytes);
void *traced_memcpy(void *to, const void *from, size_t bytes)
{
	explorer_plain(from, bytes, false);
	explorer_plain(to, bytes, true);
	return memcpy(to, from, bytes);
}

void traced_assert_fail(const char *what, const char *file, unsigned line, const char *function);
void traced_assert_fail(const char *what, const char *file, unsigned line, const char *function)
{
	if (explorer_in_thread())
		explorer_fail("assertion: %s (%s:%u, %s)", what, file, line, function);
	fprintf(stderr, "assertion: %s (%s:%u, %s)\n", what, file, line, function);
	abort();
}
