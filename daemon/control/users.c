#include "daemon/control/users.h"

#include "proto/phrases.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	RESERVED = 16, /* connections, for root and the daemon's user */
	OF_WEB = 2,    /* connections, in addition to all others */
};

static const struct {
	int64_t burst, per_second;
} rates[USER_RATES] = {
	[USER_PACKET] = {10000, 10000},
	[USER_FILE] = {256, 10},
};

/* In the file that sysusers writes: no other service of names is asked. */
void users_find_web(struct users *users)
{
	FILE *file = fopen("/etc/passwd", "re");
	const struct passwd *user;

	users->web_uid = (uid_t)-1;
	while (file && (user = fgetpwent(file)))
		if (strcmp(user->pw_name, "tokend-web") == 0)
			users->web_uid = user->pw_uid;
	if (file)
		fclose(file);
}

void users_free(struct users *users)
{
	struct user *user;

	while ((user = SLIST_FIRST(&users->known))) {
		SLIST_REMOVE_HEAD(&users->known, others);
		free(user);
	}
}

struct user *user_of(struct users *users, uid_t uid)
{
	struct user *user;

	SLIST_FOREACH(user, &users->known, others)
	if (user->uid == uid)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->all = users;
	user->uid = uid;
	for (int i = 0; i < USER_RATES; i++)
		user->rate[i].left = rates[i].burst;
	SLIST_INSERT_HEAD(&users->known, user, others);
	return user;
}

/* ---- caps ---- */

static bool is_capped(const struct user *user)
{
	return user->uid != 0 && user->uid != geteuid();
}

/* Does the config list users with several uids? */
static bool several(const struct config *config)
{
	const uid_t *of[] = {config->allow_uid, config->admin_uid};
	const uint32_t n[] = {config->allow_uids, config->admin_uids};
	uid_t first = 0;

	for (int i = 0; i < 2; i++)
		for (uint32_t k = 0; k < n[i]; k++) {
			if (first != 0 && of[i][k] != 0 && of[i][k] != first)
				return true;
			first = of[i][k] != 0 ? of[i][k] : first;
		}
	return false;
}

/* Of @total, the part that @user may have. */
static uint64_t cap(const struct user *user, uint64_t total)
{
	return is_capped(user) && several(user->all->config) ? total / 2 : total;
}

bool user_connect(struct user *user, unsigned connected, struct fault *fault)
{
	unsigned most = user->all->connections;
	unsigned reserved = most / 16 < RESERVED ? most / 16 : RESERVED;
	bool web = user->uid == user->all->web_uid;

	if (web ? user->connected < OF_WEB
		: connected <= most - (is_capped(user) ? reserved : 0) &&
				user->connected < cap(user, most)) {
		user->all->present += user->connected++ == 0;
		return true;
	}
	return fault_set_passing(fault, FAULT_DESCRIPTORS, "connections",
		"%u of %u connections are in use, %u of them by uid %u%s; close some, "
		"or " PHRASE_NOFILE,
		connected - 1, most, user->connected, (unsigned)user->uid,
		cap(user, most) < most ? ", and no user gets more than half" : "");
}

void user_disconnect(struct user *user)
{
	user->all->present -= --user->connected == 0;
}

bool user_may_take(const struct user *user, uint64_t need, uint64_t total, struct fault *fault)
{
	uint64_t most = cap(user, total);

	if (user->bytes + need <= most)
		return true;
	return (need <= most ? fault_set_passing : fault_set)(fault, FAULT_MEMORY, "slots",
		"the ring needs %" PRIu64 " bytes; uid %u has %" PRIu64 " of %" PRIu64
		", and no user gets more than half; raise memory:, or " PHRASE_SLOTS,
		need, (unsigned)user->uid, user->bytes, total);
}

/* ---- rates ---- */

/* Does nobody else need what the user takes? */
static bool is_alone(const struct user *user, enum user_rate rate)
{
	return rate == USER_PACKET && user->all->present <= 1;
}

bool user_may(struct user *user, enum user_rate rate, uint64_t now_ms)
{
	uint64_t passed = now_ms - user->rate[rate].filled_ms;
	int64_t missing = rates[rate].burst - user->rate[rate].left;
	uint64_t more = passed * (uint64_t)rates[rate].per_second / 1000;

	if ((int64_t)more >= missing) {
		user->rate[rate].left = rates[rate].burst;
		user->rate[rate].filled_ms = now_ms;
	} else {
		user->rate[rate].left += (int64_t)more;
		user->rate[rate].filled_ms += more * 1000 / (uint64_t)rates[rate].per_second;
	}
	return user->rate[rate].left > 0 || is_alone(user, rate);
}

bool user_may_write(struct user *user, uint64_t now_ms, enum fault_code code, struct fault *fault)
{
	if (!is_capped(user) || user_may(user, USER_FILE, now_ms))
		return true;
	return fault_set_passing(fault, code, "state_dir",
		"uid %u has written too many files, and may now write %d a second; save less "
		"often",
		(unsigned)user->uid, (int)rates[USER_FILE].per_second);
}

void user_charge(struct user *user, enum user_rate rate, uint64_t n)
{
	int64_t *left = &user->rate[rate].left, least = -rates[rate].burst;

	if (!is_alone(user, rate))
		*left = *left - (int64_t)n < least ? least : *left - (int64_t)n;
}
