/* Users that want the control thread at the same time share it equally, and so do a user's runs. */
#include "daemon/control/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MS_NS = 1000000, MEMBERS = 16 };

static struct pace_member member[MEMBERS];
static unsigned served[MEMBERS];
static unsigned packets[MEMBERS]; /* packets to be served */
static char order[64];

static int set_up(void **state)
{
	static struct paces paces;

	memset(&paces, 0, sizeof(paces));
	memset(member, 0, sizeof(member));
	memset(served, 0, sizeof(served));
	memset(packets, 0, sizeof(packets));
	memset(order, 0, sizeof(order));
	paces_init(&paces);
	*state = &paces;
	return 0;
}

static int tear_down(void **state)
{
	paces_free(*state);
	return 0;
}

/* A packet costs a millisecond. */
static bool serve(struct pace_member *m, bool alone)
{
	size_t i = (size_t)(m - member);

	(void)alone;
	if (strlen(order) + 1 < sizeof(order))
		order[strlen(order)] = (char)('a' + i);
	served[i]++;
	pace_charge(m, MS_NS);
	return --packets[i] > 0;
}

static void want(struct paces *paces, unsigned i, unsigned n)
{
	packets[i] = n;
	pace_wait(paces, &member[i]);
}

/* A flood by many users at once leaves half of the time to the others. */
static void test_many_users_leave_half(void **state)
{
	struct paces *paces = *state;
	unsigned all = 0;

	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_true(pace_join(paces, &member[i], i, 1000));
		want(paces, i, 1000000);
	}
	for (uint64_t now = 1000; now < 2000; now++)
		pace_serve(paces, now, serve);
	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_in_range(served[i], 1000 / MEMBERS / 2, 1000 / MEMBERS / 2 + 3);
		all += served[i];
		pace_forget(&member[i]);
		pace_leave(&member[i]);
	}
	assert_in_range(all, 500, 500 + 3 * MEMBERS);
	assert_int_equal(paces->root.hungry, 0);
}

/* Connections of one run take turns, one packet each. A run that begins later does not wait for the
 * other runs' packets. */
static void test_members_of_a_run_take_turns(void **state)
{
	struct paces *paces = *state;

	for (unsigned i = 0; i < 3; i++)
		assert_true(pace_join(paces, &member[i], 1, 1000));
	pace_run(paces, &member[2], "other", 1000);
	want(paces, 0, 20);
	want(paces, 1, 20);
	assert_true(pace_serve(paces, 1000, serve));
	assert_string_equal(order, "ab"); /* all the credit of 2 ms */
	memset(order, 0, sizeof(order));
	want(paces, 2, 1);
	for (uint64_t now = 1001; now < 1016; now++)
		pace_serve(paces, now, serve);
	assert_non_null(strchr(order, 'c'));
	for (unsigned i = 0; i < 3; i++) {
		pace_forget(&member[i]);
		pace_leave(&member[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_many_users_leave_half, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_members_of_a_run_take_turns, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
