/* Lists of users: numbers, names, and groups as "@NAME". */
#include "daemon/config/schema.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

static const char USER_RIGHT[] = "a user name, \"@GROUP\", or a user number";

struct users {
	uid_t **list;
	uint32_t *count;
	size_t room;
};

static bool add(struct schema *s, struct users *to, uid_t uid)
{
	if (*to->count == to->room) {
		size_t room = 2 * to->room + 8;
		uid_t *list = realloc(*to->list, room * sizeof(*list));

		if (!list)
			return schema_refuse_memory(s);
		*to->list = list;
		to->room = room;
	}
	(*to->list)[(*to->count)++] = uid;
	return true;
}

/* The members that it has now. Also users whose primary group it is: they are in passwd, not in
 * group. */
static bool take_group(struct schema *s, const char *name, struct users *to)
{
	const struct group *group = getgrnam(name);
	const struct passwd *user;
	char shown[64];
	bool fine = true;

	if (!group)
		return schema_refuse(s,
			"no group is called %s on this host; check it with `getent group %s`",
			schema_show(name, shown), shown);
	for (char **member = group->gr_mem; fine && *member; member++) {
		user = getpwnam(*member);
		fine = !user || add(s, to, user->pw_uid);
	}
	setpwent();
	while (fine && (user = getpwent()))
		fine = user->pw_gid != group->gr_gid || add(s, to, user->pw_uid);
	endpwent();
	return fine;
}

static bool take_user(struct schema *s, const char *no_name, yaml_node_t *value, void *to)
{
	/* The kernel uses 2^32 - 1 for "no user". */
	static const struct schema_key number = {
		"uid", schema_number, .max = UINT32_MAX - 1, .right = USER_RIGHT};
	const char *text = schema_scalar(s, value, USER_RIGHT);
	const struct passwd *user;
	char shown[64];
	uint64_t uid;

	(void)no_name;
	if (!text)
		return false;
	if (text[0] == '@')
		return take_group(s, text + 1, to);
	/* POSIX allows names of digits alone, but no system creates them. */
	if (strspn(text, "+-.0123456789") == strlen(text))
		return schema_number(s, &number, value, &uid) && add(s, to, (uid_t)uid);
	user = getpwnam(text);
	if (!user)
		return schema_refuse(s, "no user is called %s on this host; check it with `id %s`",
			schema_show(text, shown), shown);
	return add(s, to, user->pw_uid);
}

static const struct schema_entries entries = {
	.type = YAML_SEQUENCE_NODE, .right = USERS_RIGHT, .take = take_user};

SCHEMA_TAKER(allow_uids_take)
{
	struct config *config = to;

	(void)key;
	return schema_each(s, &entries, value, NULL,
		&(struct users){&config->allow_uid, &config->allow_uids, 0});
}

SCHEMA_TAKER(admin_uids_take)
{
	struct config *config = to;

	(void)key;
	return schema_each(s, &entries, value, NULL,
		&(struct users){&config->admin_uid, &config->admin_uids, 0});
}
