/* A repeated read comes from the disk: its bytes are dropped from the page cache, wherever in a
 * page they begin and end. */
#include "daemon/shard/reread.h"
#include "tests/unit/files.h"
#include "tests/unit/skip.h"

#include <errno.h>
#include <sys/uio.h>

enum { PAGE = 4096, PAGES = 1100 };

static bool is_cached(int fd, uint64_t at)
{
	char byte;
	struct iovec to = {&byte, 1};

	return preadv2(fd, &to, 1, (off_t)at, RWF_NOWAIT) != -1 || errno != EAGAIN;
}

/*
 * Whether page 600 is dropped. The kernel keeps pages of a file that was just written while its
 * journal is busy with other files: then it must drop them a little later.
 */
static bool is_dropped(int fd, uint64_t at, uint64_t n)
{
	for (unsigned i = 0; i < 1000; i++) {
		reread_forget(fd, at, n);
		if (!is_cached(fd, 600 * PAGE + 2))
			return true;
		usleep(1000);
	}
	return false;
}

static int cached_file(const char *path)
{
	static char bytes[PAGES * PAGE];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	assert_return_code(fsync(fd), errno); /* dirty pages cannot be dropped */
	assert_true(is_cached(fd, 0) && is_cached(fd, 600 * PAGE));
	return fd;
}

static void test_repeated_reads_come_from_the_disk(void **state)
{
	static const struct {
		uint64_t at, n;
	} ranges[] = {{600 * PAGE, PAGE}, {600 * PAGE + 1, 1}, {600 * PAGE - 7, 3 * PAGE}, {0, 0},
		{600 * PAGE + 5, 0}};
	const char *path = files_path(*state, "a.bin");

	for (unsigned i = 0; i < COUNT(ranges); i++) {
		int fd = cached_file(path);

		bool dropped = is_dropped(fd, ranges[i].at, ranges[i].n);

		close(fd);
		if (i == 0 && !dropped)
			skip_because("a tmpfs has no disk to read from");
		assert_true(dropped);
	}
}

static void tell(void *context, int fd, uint64_t at, uint64_t n, const char *why)
{
	assert_int_equal(fd, 7);
	assert_int_equal(at, 11);
	assert_int_equal(n, 13);
	assert_string_equal(why, "so");
	++*(unsigned *)context;
}

static void test_repeated_reads_are_reported(void **state)
{
	unsigned told = 0;

	(void)state;
	reread_was_good(7, 11, 13, "so"); /* no callback is set */
	reread_tell(tell, &told);
	reread_was_good(7, 11, 13, "so");
	reread_tell(NULL, NULL);
	assert_int_equal(told, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_repeated_reads_come_from_the_disk, files_set_up, files_tear_down),
		cmocka_unit_test(test_repeated_reads_are_reported),
	};

	return cmocka_run_group_tests_name("reread", tests, NULL, NULL);
}
