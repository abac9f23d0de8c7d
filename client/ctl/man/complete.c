#include "client/ctl/man/complete.h"

#include <string.h>

const char *complete_word(const struct ctl_command *command)
{
	const char *last = strrchr(command->name, ' ');

	return last ? last + 1 : command->name;
}

bool complete_is_file(const struct ctl_option *o)
{
	static const char *const files[] = {"FILE", "PATH", "OUT"};

	for (unsigned i = 0; i < sizeof(files) / sizeof(*files); i++)
		if (strcmp(o->value, files[i]) == 0)
			return true;
	return false;
}
