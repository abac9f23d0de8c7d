/* Many users that flood the control thread share half of it equally, and leave the other half. */
#include "daemon/control/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MS_NS = 1000000, MEMBERS = 16, FIRST_MS = 1000, MS = 1000 };

static struct pace_member member[MEMBERS];
static unsigned served[MEMBERS];

/* A packet costs a millisecond, and there is always another one. */
static bool serve(struct pace_member *m, bool alone)
{
	(void)alone;
	served[m - member]++;
	pace_charge(m, MS_NS);
	return true;
}

static void test_many_users_leave_half(void **state)
{
	static struct paces paces;
	unsigned all = 0;

	(void)state;
	paces_init(&paces);
	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_true(pace_join(&paces, &member[i], i, FIRST_MS));
		pace_wait(&paces, &member[i]);
	}
	for (uint64_t now = FIRST_MS; now < FIRST_MS + MS; now++)
		pace_serve(&paces, now, serve);
	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_in_range(served[i], MS / MEMBERS / 2, MS / MEMBERS / 2 + 3);
		all += served[i];
		pace_forget(&member[i]);
		pace_leave(&member[i]);
	}
	assert_in_range(all, MS / 2, MS / 2 + 3 * MEMBERS);
	assert_int_equal(paces.root.hungry, 0);
	paces_free(&paces);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_users_leave_half)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
