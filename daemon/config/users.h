/* Lists of users: numbers, names, and groups as "@NAME". */
#ifndef TOKEND_USERS_H
#define TOKEND_USERS_H

#include "daemon/config/schema.h"

#include <sys/types.h>

#define USERS_RIGHT "a list of user names, numbers or \"@GROUP\", such as [alice, 1000]"

/*
 * Reads a list of users into *@list, [*@count], owned by the caller also after a failure. A group
 * means the members that it has now.
 */
bool users_take(struct schema *s, yaml_node_t *value, int line, uid_t **list, uint32_t *count);

#endif
