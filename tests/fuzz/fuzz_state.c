/*
 * A libFuzzer target: the files of a state_dir, as the daemon finds them. They are loaded as
 * snapshots, read as the owner and the mix log of a run, and overwritten.
 *
 * unit/test_power_cut.c shows what a save leaves.
 *
 * An input is: failures (fail.h), a byte of flags, a tag with its length, the bytes to save with
 * their length, then files: a byte that chooses the name, and the contents with their length.
 */
#include "daemon/control/durable.h"
#include "daemon/control/mix_log.h"
#include "daemon/control/snapshot_file.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PRIVILEGED = 1, CLEAN = 2, OTHER_USER = 4, NO_DIRECTORY = 8, LONG_PATH = 16 };

static const char *const names[] = {"run/a.cursor", "run/a.former.cursor", "run/b.cursor",
	"run/.owner", "run/mixes/000001.cursor", "run/mixes/000002.cursor", "run/.0123.new",
	"run/.a.link", "run/mixes/.0123.new", "other/a.cursor", "third/a.cursor",
	"run/mixes/1.cursor", "run/mixes/9999999999999999999.cursor", "run/mixes", "run/a.cursor/x",
	"../.lock", "run"};

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

static void load(const struct run_place *place, const char *tag)
{
	static uint8_t at[LIMIT_CURSOR_BYTES];
	char former[SNAPSHOT_TAG_BYTES];
	struct fault fault = {0};
	size_t n = snapshot_file_load(place, tag, at, former, &fault);

	assert(n <= sizeof(at) && memchr(former, 0, sizeof(former)));
	if (n == 0)
		check_fault(&fault);
}

/* Over whatever is there. The daemon rejects wrong tags before. */
static void save(const struct run_place *place, const char *tag, struct input bytes)
{
	struct input some = {bytes.at, bytes.n < LIMIT_CURSOR_BYTES ? bytes.n : LIMIT_CURSOR_BYTES};
	struct snapshot_saved saved;
	struct fault fault = {0};

	if (some.n > 0 && wire_name_ok(tag) &&
		!snapshot_file_save(place, tag, some.at, some.n, &saved, &fault))
		check_fault(&fault);
}

/* The mix of @bytes, if they are a cursor, otherwise that of a new cursor. */
static void note(const struct run_place *place, struct input bytes)
{
	struct cursor identity = {.stream = "train", .seed = 1, .seq_len = 4, .stride = 4};
	struct cursor_source source = {"web", 1, 100, 7, 1, 1, ORDER_GLOBAL, false, 0, 0, 0};
	static uint8_t encoded[LIMIT_CURSOR_BYTES];
	struct mix_logs *logs = mix_logs_new();
	struct mix_noted noted;
	struct fault fault;
	struct cursor c;

	if (!cursor_decode(&c, bytes.at, bytes.n, &fault) &&
		!cursor_begin(&c, &identity, &source, 1, NULL, 0, &fault)) {
		cursor_free(&c);
		mix_logs_free(logs);
		return;
	}
	size_t n = cursor_encode(&c, encoded, sizeof(encoded));

	for (int i = 0; logs && i < 3; i++) {
		bool done = mix_log_note(logs, place, mix_checksum(&c), encoded, n, &noted);

		if (i > 0 && done) /* a call before found it */
			assert(!noted.added || fail_happened());
		if (i == 1) { /* another daemon, without this cache */
			mix_logs_free(logs);
			logs = mix_logs_new();
		}
	}
	cursor_free(&c);
	mix_logs_free(logs);
}

static void use(
	const struct run_place *place, const char *tag, struct input bytes, const uint8_t *plan)
{
	static const char *const tags[] = {"a", "a.former", "b", "run/a", "other/a", "third/a",
		"none/a", "..", "a/b/c", "", ".former", "none"};
	char path[PATH_MAX];
	struct fault fault = {0};
	uid_t owner;

	fail_plan(plan);
	for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
		load(place, tags[i]);
	load(place, tag);
	if (run_dir_path(place, path, &fault) && !run_dir_owner(path, &owner, &fault))
		check_fault(&fault);
	run_dir_greet(place);
	fail_plan(plan);
	run_dir_sweep(place);
	fail_plan(plan);
	note(place, bytes);
	fail_plan(plan);
	save(place, tag, bytes);
	fail_plan(plan);
	save(place, "a", bytes);
	fail_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size}, part, bytes;
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)}, flags = input_byte(&in);
	char tag[SNAPSHOT_TAG_BYTES * 2] = "";
	struct run_place place = {.stream = "train",
		.run = "run",
		.locks = run_locks_new(),
		.uid = flags & OTHER_USER ? 70 : 7,
		.privileged = flags & PRIVILEGED,
		.clean = flags & CLEAN};

	part = input_sized(&in);
	part.n = part.n < sizeof(tag) ? part.n : sizeof(tag) - 1;
	memcpy(tag, part.at, part.n);
	bytes = input_sized(&in);
	put_files(&in);
	snprintf(place.state_dir, sizeof(place.state_dir), "%s%s", scratch,
		flags & NO_DIRECTORY ? "/new/one" : "");
	if (flags & LONG_PATH)
		memset(place.state_dir, '/', sizeof(place.state_dir) - 2 - flags / 32);
	if (place.locks)
		use(&place, tag, bytes, plan);
	run_locks_free(place.locks);
	scratch_empty();
	return 0;
}
