/* The name meant by a mistyped one, and the list of names that a message shows. */
#include "proto/limits.h"
#include "proto/nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {"train", "valid", "u16", "ab", "checkpoint", "micro_batch"};

enum { NAMES = sizeof(names) / sizeof(names[0]) };

static const struct {
	const char *text, *near;
} meant[] = {
	{"trian", "train"}, /* swapped */
	{"tain", "train"},
	{"trainn", "train"},
	{"valjd", "valid"},
	{"u8", "u16"},
	{"a", "ab"},
	{"ba", "ab"},
	{"chekpont", "checkpoint"},
	{"chckpnt", "checkpoint"},  /* three edits of a long name */
	{"chckpotn", "checkpoint"}, /* three, as a swap is one */
	{"microbatches", "micro_batch"},
	{"xy", NULL}, /* as long as the name: another word */
	{"test", NULL},
	{"", NULL},
	{"0123456789012345678901234567890123456789012345678901234567890123456789", NULL},
};

static void a_mistyped_name_is_recognized(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(meant) / sizeof(meant[0]); i++) {
		const char *near = nearest(meant[i].text, names, NAMES);

		if (!near || !meant[i].near) {
			if (near != meant[i].near)
				fail_msg("%s: %s", meant[i].text, near ? near : "none");
			continue;
		}
		assert_string_equal(near, meant[i].near);
	}
}

static void a_list_names_all(void **state)
{
	char list[NEAREST_LIST_BYTES];

	(void)state;
	assert_string_equal(
		nearest_list(list, "valud", names, 2), "train, valid; did you mean valid?");
	assert_string_equal(nearest_list(list, "test", names, 1), "train");
}

/* The longest names, and more of them than are shown. */
static void a_long_list_is_cut(void **state)
{
	char list[NEAREST_LIST_BYTES], name[20][LIMIT_NAME_BYTES + 1];
	const char *known[20];
	size_t shown = 0;
	unsigned more = 0;

	(void)state;
	for (unsigned bytes = 1; bytes <= LIMIT_NAME_BYTES; bytes++) {
		for (size_t i = 0; i < 20; i++) {
			memset(name[i], 'a' + (int)i, bytes);
			name[i][bytes] = 0;
			known[i] = name[i];
		}
		nearest_list(list, known[19], known, 20);
		assert_int_equal(sscanf(strstr(list, " and "), " and %u more", &more), 1);
		shown = 1;
		for (const char *c = list; *c; c++)
			shown += *c == ',';
		assert_int_equal(shown + more, 20);
		assert_in_range(shown, 5, 16);
		snprintf(name[0], sizeof(name[0]), "mean %.40s", known[19]);
		assert_non_null(strstr(list, name[0]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mistyped_name_is_recognized),
		cmocka_unit_test(a_list_names_all),
		cmocka_unit_test(a_long_list_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
