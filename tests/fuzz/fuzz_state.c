/*
 * A libFuzzer target: the files of a state_dir, as the daemon finds them. They are loaded as
 * snapshots, compared with the cursor of an attach, and overwritten.
 *
 * unit/test_power_cut.c shows what a save leaves.
 *
 * An input is: failures (fail.h), a byte of flags, a tag with its length, the bytes to save with
 * their length, then files: a byte that chooses the name, and the contents with their length.
 */
#include "daemon/control/control.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_DIRECTORY = 1, LONG_PATH = 2 };

static const char *const names[] = {"run/a.cursor", "run/b.cursor", "run/.run.cursor",
	"run/.0123456789abcdef.new", "run/.a.link", "other/a.cursor", "run/a.cursor/x", "run"};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	scratch_open();
	return 0;
}

/* Files whose names exclude each other: the later one is not made. */
static void put_files(struct input *in)
{
	char path[256];

	for (int i = 0; i < 8 && in->n > 0; i++) {
		uint8_t which = input_byte(in);
		struct input part = input_sized(in);

		snprintf(path, sizeof(path), "%s/train/%s", scratch,
			names[which % (sizeof(names) / sizeof(names[0]))]);
		for (char *p = strchr(path + strlen(scratch) + 1, '/'); p; p = strchr(p + 1, '/')) {
			*p = 0;
			mkdir(path, 0700);
			*p = '/';
		}
		if (which >= 128 && symlink(which % 2 ? "b.cursor" : "/nowhere", path) == 0)
			continue;
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);

		if (fd >= 0 && write(fd, part.at, part.n) != (ssize_t)part.n)
			abort();
		if (fd >= 0)
			close(fd);
	}
}

static void load(const struct state_run *run, const char *tag)
{
	static uint8_t at[LIMIT_CURSOR_BYTES];
	struct fault fault = {0};
	size_t n = state_load(run, tag, at, &fault);

	assert(n <= sizeof(at));
	if (n == 0)
		check_fault(&fault);
}

/* Over whatever is there. The daemon rejects wrong tags before. */
static void save(const struct state_run *run, const char *tag, struct input bytes)
{
	struct fault fault = {0};
	bool written;

	if (bytes.n == 0)
		return;
	bytes.n = bytes.n < LIMIT_CURSOR_BYTES ? bytes.n : LIMIT_CURSOR_BYTES;
	if (!state_save(run, tag, bytes.at, bytes.n, &fault))
		check_fault(&fault);
	if (!state_note(run, bytes.at, bytes.n, &written, &fault))
		check_fault(&fault);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size}, part, bytes;
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)}, flags = input_byte(&in);
	char tag[LIMIT_NAME_BYTES + 1] = "", directory[PATH_MAX] = "";
	struct state state = {.dir = directory};
	const struct state_run run = {.state = &state, .stream = "train", .name = "run"};

	part = input_sized(&in);
	part.n = part.n < sizeof(tag) ? part.n : sizeof(tag) - 1;
	memcpy(tag, part.at, part.n);
	bytes = input_sized(&in);
	put_files(&in);
	snprintf(directory, sizeof(directory), "%s%s", scratch,
		flags & NO_DIRECTORY ? "/new/one" : "");
	if (flags & LONG_PATH)
		memset(directory + 1, 'a', sizeof(directory) - 3 - flags / 32);
	fail_plan(plan);
	load(&run, "a");
	if (wire_name_ok(tag)) {
		load(&run, tag);
		save(&run, tag, bytes);
	}
	fail_plan(plan);
	save(&run, "a", bytes);
	fail_end();
	scratch_empty();
	return 0;
}
