#include "daemon/shard/types.h"

#include <string.h>

static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};

const char *shard_type_name(enum shard_type type)
{
	return names[type];
}

bool shard_type(const char *name, enum shard_type *type)
{
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0) {
			*type = (enum shard_type)i;
			return true;
		}
	return false;
}
