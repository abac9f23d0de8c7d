/*
 * Caps and rates of each user. While allow_uids: and admin_uids: list several, each of them gets at
 * most half of the connections and half of the memory for rings. Root and the daemon's own user
 * have no such cap, and a few connections are reserved for them. tokend-web has two of its own.
 *
 * Each user has a token bucket of packets. While it is empty, the user's packets wait in their
 * sockets, and others are served. A single user that is connected has no limit.
 */
#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	RESERVED = 16,	    /* connections, for root and the daemon's user */
	OF_WEB = 2,	    /* connections, in addition to all others */
	PACKET_US = 100,    /* 10,000 packets a second */
	BURST_US = 1000000, /* those of a second at once */
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
	SLIST_INSERT_HEAD(&users->known, user, others);
	return user;
}

/* ---- caps ---- */

static bool is_capped(const struct user *user)
{
	return user->uid != 0 && user->uid != geteuid();
}

/* Of @total, the part that @user may have. */
static uint64_t cap(const struct user *user, uint64_t total)
{
	const struct config *config = user->all->config;
	bool several = config->allow_uids + config->admin_uids > 1;

	return is_capped(user) && several ? total / 2 : total;
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

bool user_may(struct user *user, uint64_t now_ms)
{
	int64_t now_us = (int64_t)now_ms * 1000;

	if (user->used_us < now_us - BURST_US)
		user->used_us = now_us - BURST_US;
	if (user->used_us > now_us + BURST_US)
		user->used_us = now_us + BURST_US;
	return user->used_us < now_us || user->all->present <= 1;
}

void user_charge(struct user *user, uint64_t packets)
{
	if (user->all->present > 1)
		user->used_us += (int64_t)packets * PACKET_US;
}
