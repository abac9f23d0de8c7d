/*
 * The memory that cgroups leave, from simulated files: many machines that run tests have no memory
 * controller of version 2. system/test_cgroup.py uses the kernel's own files.
 */
#include "daemon/control/host.h"
#include "tests/unit/files.h"

#define MIB (UINT64_C(1) << 20)

static void put(struct files *f, const char *name, const char *text)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", f->directory, name);
	for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static void put_group(struct files *f, const char *group, const char *most, const char *high,
	const char *current, const char *stat)
{
	static const char *const names[] = {"max", "high", "current", "stat"};
	const char *texts[] = {most, high, current, stat};

	for (int i = 0; i < 4; i++) {
		char name[256];

		snprintf(name, sizeof(name), "sys/fs/cgroup/%s/memory.%s", group, names[i]);
		put(f, name, texts[i]);
	}
}

static bool room_of(struct files *f, struct cgroup_room *room)
{
	struct cgroup *cgroup = cgroup_find(f->directory);
	bool any = cgroup_room(cgroup, room);

	free(cgroup);
	return any;
}

#define NO_STAT "anon 5\n"

static void test_limits_of_a_group_and_its_parents(void **state)
{
	struct cgroup_room room;

	put(*state, "proc/self/cgroup", "4:memory:/job\n0::/a/b c\n");
	assert_false(room_of(*state, &room)); /* the group has no files, so no limit */
	put_group(*state, "a/b c", "max\n", "max\n", "1048576\n", NO_STAT);
	assert_false(room_of(*state, &room));
	put_group(*state, "a/b c", "1073741824\n", "max\n", "104857600\n",
		"anon 7\nactive_file 20971520\ninactive_file 10485760\nfile 99\n");
	assert_true(room_of(*state, &room));
	assert_int_equal(room.limit, 1024 * MIB);
	assert_int_equal(room.used, 70 * MIB);
	assert_int_equal(room.kept, 64 * MIB);
	assert_int_equal(room.left, 890 * MIB);
	assert_string_equal(room.path, "/a/b c");
	/* memory.high is a limit too, and so are a parent's limits. */
	put_group(*state, "a/b c", "1073741824\n", "536870912\n", "104857600\n", NO_STAT);
	assert_true(room_of(*state, &room));
	assert_int_equal(room.limit, 512 * MIB);
	put_group(*state, "a", "209715200\n", "max\n", "157286400\n", NO_STAT);
	assert_true(room_of(*state, &room));
	assert_string_equal(room.path, "/a");
	assert_int_equal(room.left, (200 - 150 - 16) * MIB);
}

/* In a container, the mount may show less than the path says. */
static void test_groups_seen_from_containers(void **state)
{
	struct cgroup_room room;

	put_group(*state, "", "209715200\n", "max\n", "0\n", NO_STAT);
	for (int i = 0; i < 3; i++) {
		static const char *const paths[] = {"0::/\n", "0::/docker/x\n", "0::/../else\n"};

		put(*state, "proc/self/cgroup", paths[i]);
		assert_true(room_of(*state, &room));
		assert_string_equal(room.path, "/");
		assert_int_equal(room.limit, 200 * MIB);
	}
}

#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FILES(test_limits_of_a_group_and_its_parents),
		WITH_FILES(test_groups_seen_from_containers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
