#include "client/ctl/online/socket.h"

#include "client/ctl/common/error.h"
#include "client/lib/tokend.h"
#include "daemon/config/config.h"

#include <stdlib.h>
#include <string.h>

enum { SOCKET_BYTES = 4096 };

char *ctl_socket(const char *option, const char *config)
{
	const char *environment = getenv("TOKEND_SOCKET");
	char path[SOCKET_BYTES], *copy;
	struct config *loaded = NULL;
	struct fault fault;

	if (!option && !(environment && *environment) && config) {
		loaded = config_load(config, &fault);
		if (!loaded) {
			ctl_fail("%s", fault.text);
			return NULL;
		}
	}
	if (loaded && loaded->has_socket)
		copy = strdup(loaded->socket);
	else if (option)
		copy = strdup(option);
	else
		copy = tokend_default_socket(path, sizeof(path)) == 0 ? strdup(path) : NULL;
	config_free(loaded);
	if (!copy)
		ctl_fail("out of memory");
	return copy;
}
