/*
 * Registering in chunks, and the order in which copies end, with the fake driver in this program's
 * directory. tests/system/test_pin.py tests the rest with a daemon.
 */
#include "client/lib/pin.h"
#include "tests/gpu/fake_cuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB	      (UINT64_C(1) << 30)
#define CU(name, ...) ((int (*)(__VA_ARGS__))dlsym(library, #name))

static void *library;
static struct fault fault;

/* A ring of @slots slots of @bytes in a sparse file. */
struct place {
	struct ring ring;
	struct pin *pin;
	uint64_t bytes;
};

static void make(struct place *p, uint64_t slots, uint64_t bytes)
{
	int fd = memfd_create("ring", MFD_CLOEXEC);

	memset(p, 0, sizeof(*p));
	assert_true(ring_geometry(&p->ring.geometry, slots, 1, bytes / 2, 2, false, &fault));
	p->bytes = p->ring.geometry.data_bytes;
	assert_int_equal(ftruncate(fd, (off_t)p->bytes), 0);
	p->ring.data =
		mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	assert_ptr_not_equal(p->ring.data, MAP_FAILED);
	close(fd);
	p->pin = pin_open(0, &fault);
	assert_non_null(p->pin);
}

static void unmake(struct place *p)
{
	assert_int_equal(CU(fakeRegistered, void)(), 0);
	munmap(p->ring.data, p->bytes);
	pin_close(p->pin);
	assert_int_equal(CU(fakeFaults, void)(), 0);
}

static int find_driver(void **state)
{
	char path[600], *slash;
	ssize_t n = readlink("/proc/self/exe", path, 500);

	(void)state;
	if (n < 0)
		return -1;
	path[n] = 0;
	slash = strrchr(path, '/');
	strcpy(slash, "/fake/libcuda.so.1");
	library = dlopen(path, RTLD_NOW); /* later dlopen() calls find it by its name */
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	return library ? 0 : -1;
}

/* 5 slots of 600 MiB, one per GiB: 4 full chunks and a shorter one. All are registered, or none. */
static void memory_is_registered_in_chunks_of_a_gib(void **state)
{
	struct place p;

	(void)state;
	make(&p, 5, 600 << 20);

	struct copies *c = copies_new(p.pin, &p.ring);

	setenv("FAKE_CUDA_REGISTER_FAILS", "4", 1);
	assert_false(copies_register(c, "socket", &fault));
	unsetenv("FAKE_CUDA_REGISTER_FAILS");
	assert_int_equal(fault.code, FAULT_MEMORY);
	assert_non_null(strstr(fault.text, "CUDA_ERROR_OUT_OF_MEMORY"));
	assert_int_equal(copies_registered(c), 0);
	assert_int_equal(CU(fakeRegistered, void)(), 0);
	for (int twice = 0; twice < 2; twice++)
		assert_true(copies_register(c, "/nowhere/socket", &fault));
	assert_int_equal(copies_registered(c), 4 * GIB + (600 << 20));
	assert_int_equal(CU(fakeRegistered, void)(), 5);
	assert_true(copies_free(c));
	unmake(&p);
}

static void copies_end_in_the_order_they_began(void **state)
{
	enum { SLOT = 4096 };
	void *context, *slow, *fast;
	struct place p;
	uint64_t to, s = 99;

	(void)state;
	make(&p, 4, SLOT);
	assert_int_equal(CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), 0);
	CU(cuCtxSetCurrent, void *)(context);
	CU(cuStreamCreate, void **, unsigned)(&slow, 1);
	CU(cuStreamCreate, void **, unsigned)(&fast, 1);
	CU(cuMemAlloc_v2, uint64_t *, size_t)(&to, SLOT);

	struct copies *c = copies_new(p.pin, &p.ring);

	assert_true(copies_register(c, "socket", &fault));
	assert_true(copies_none(c));
	assert_false(copies_over(c, UINT64_MAX, &s));
	setenv("FAKE_CUDA_DELAY_MS", "100000", 1);
	assert_true(copies_start(c, 6, to, slow, &fault));
	unsetenv("FAKE_CUDA_DELAY_MS");
	assert_true(copies_start(c, 7, to, fast, &fault));
	assert_true(copies_has(c, 6) && copies_has(c, 7) && !copies_has(c, 5));
	assert_false(copies_over(c, UINT64_MAX, &s)); /* 6 has not ended, 7 comes after it */
	copies_settle(c, 8);
	copies_free(copies_new(p.pin, &p.ring)); /* another ring does not wait for these copies */
	assert_false(copies_over(c, UINT64_MAX, &s));
	CU(fakeRush, void)();
	assert_false(copies_over(c, 6, &s));
	assert_true(copies_over(c, 9, &s) && s == 6);
	assert_true(copies_over(c, 9, &s) && s == 7);
	assert_false(copies_over(c, 8, &s));
	assert_true(copies_over(c, 9, &s) && s == 8);
	assert_true(copies_none(c));
	assert_true(copies_free(c));
	unmake(&p);
}

static void without_context_events_a_sync_settles(void **state)
{
	struct place p;
	uint64_t s;

	(void)state;
	make(&p, 4, 4096);

	struct copies *c = copies_new(p.pin, &p.ring);

	setenv("FAKE_CUDA_NO_RECORD", "1", 1);
	copies_settle(c, 2);
	unsetenv("FAKE_CUDA_NO_RECORD");
	assert_false(copies_over(c, UINT64_MAX, &s));
	copies_sync(c);
	assert_true(copies_over(c, UINT64_MAX, &s));
	assert_int_equal(s, 2);
	assert_true(copies_free(c));
	unmake(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_registered_in_chunks_of_a_gib),
		cmocka_unit_test(copies_end_in_the_order_they_began),
		cmocka_unit_test(without_context_events_a_sync_settles),
	};

	return cmocka_run_group_tests(tests, find_driver, NULL);
}
