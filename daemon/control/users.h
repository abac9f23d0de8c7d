/*
 * Caps and rates of each user. All on the loop.
 *
 * While allow_uids: and admin_uids: list several users, each of them gets at most half of the
 * connections and half of the memory for rings. Root and the daemon's own user have no such cap,
 * and a few connections are reserved for them. tokend-web has two connections of its own.
 *
 * Rates are token buckets. While a user has no token left, its packets wait in their sockets, and
 * others are served. A single user that is connected has no limit.
 */
#ifndef TOKEND_USERS_H
#define TOKEND_USERS_H

#include "daemon/config/config.h"
#include "proto/fault.h"

#include <sys/queue.h>

enum user_rate {
	USER_PACKET, /* a packet, a KiB of one or of a reply, a new connection, a MiB of a ring */
	USER_FILE,   /* written into state_dir */
	USER_RATES,
};

struct user {
	SLIST_ENTRY(user) others;
	struct users *all;
	uid_t uid;
	unsigned connected;
	uint64_t bytes;		     /* of rings */
	int64_t used_us[USER_RATES]; /* until then, its tokens are used */
};

struct users {
	const struct config *config; /* the newest one */
	unsigned connections;	     /* at most */
	SLIST_HEAD(, user) known;
	unsigned present; /* users with connections */
	uid_t web_uid;	  /* of tokend-web; -1: there is no such user */
};

/* Looks for the user of tokend-web.service, who may only ask for the status. */
void users_find_web(struct users *users);
void users_free(struct users *users);
/* The user with @uid. NULL: out of memory. */
struct user *user_of(struct users *users, uid_t uid);

/* Counts a new connection of the user; @connected: all users' connections, including this one.
 * False: too many. */
bool user_connect(struct user *user, unsigned connected, struct fault *fault);
void user_disconnect(struct user *user);
/* May the user have @need more bytes of @total for rings? The caller counts them in ->bytes. */
bool user_may_take(const struct user *user, uint64_t need, uint64_t total, struct fault *fault);

/* Is a token left? */
bool user_may(struct user *user, enum user_rate rate, uint64_t now_ms);
/* The same for USER_FILE, with a fault. */
bool user_may_write(struct user *user, uint64_t now_ms, enum fault_code code, struct fault *fault);
/* Takes @n tokens. */
void user_charge(struct user *user, enum user_rate rate, uint64_t n);

#endif
