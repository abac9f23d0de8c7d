#include "daemon/config/users.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

struct users {
	uid_t **list;
	uint32_t *count;
	size_t room;
};

static bool add(struct schema *s, int line, struct users *to, uid_t uid)
{
	if (*to->count == to->room) {
		size_t room = 2 * to->room + 8;
		uid_t *list = realloc(*to->list, room * sizeof(*list));

		if (!list)
			return schema_refuse_memory(s, line);
		*to->list = list;
		to->room = room;
	}
	(*to->list)[(*to->count)++] = uid;
	return true;
}

static bool take_number(struct schema *s, yaml_node_t *node, int line, struct users *to)
{
	/* The kernel uses 2^32 - 1 for "no user". */
	static const struct schema_key uid_key = {"uid", schema_number, .max = UINT32_MAX - 1,
		.right = "a user name, \"@GROUP\", or a user number"};
	uint64_t uid;

	return schema_number(s, &uid_key, node, line, &uid) && add(s, line, to, (uid_t)uid);
}

static bool take_name(struct schema *s, const char *name, int line, struct users *to)
{
	const struct passwd *user = getpwnam(name);
	char shown[64];

	if (!user)
		return schema_refuse(s, line,
			"no user is called %s on this host; check it with `id %s`",
			schema_show(name, shown), shown);
	return add(s, line, to, user->pw_uid);
}

/* Also users whose primary group it is: they are in passwd, not in group. */
static bool take_group(struct schema *s, const char *name, int line, struct users *to)
{
	const struct group *group = getgrnam(name);
	const struct passwd *user;
	char shown[64];
	bool fine = true;

	if (!group)
		return schema_refuse(s, line,
			"no group is called %s on this host; check it with `getent group %s`",
			schema_show(name, shown), shown);
	for (char **member = group->gr_mem; fine && *member; member++) {
		user = getpwnam(*member);
		fine = !user || add(s, line, to, user->pw_uid);
	}
	setpwent();
	while (fine && (user = getpwent()))
		fine = user->pw_gid != group->gr_gid || add(s, line, to, user->pw_uid);
	endpwent();
	return fine;
}

static bool take_user(struct schema *s, yaml_node_t *node, int line, struct users *to)
{
	const char *text =
		schema_scalar(s, node, line, "a user name, \"@GROUP\", or a user number");

	if (!text)
		return false;
	if (text[0] == '@')
		return take_group(s, text + 1, line, to);
	/* POSIX allows names of digits alone, but no system creates them. */
	if (strspn(text, "+-.0123456789") == strlen(text))
		return take_number(s, node, line, to);
	return take_name(s, text, line, to);
}

bool users_take(struct schema *s, yaml_node_t *value, int line, uid_t **list, uint32_t *count)
{
	struct users to = {list, count, 0};

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, USERS_RIGHT))
		return false;
	size_t n = (size_t)(value->data.sequence.items.top - value->data.sequence.items.start);

	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		size_t field = schema_enter_item(s, i);

		if (!take_user(s, node, (int)node->start_mark.line + 1, &to))
			return false;
		schema_leave(s, field);
	}
	return true;
}
