#include "client/ctl/online/socket.h"

#include "client/ctl/common/error.h"
#include "client/lib/place.h"
#include "daemon/config/config.h"

#include <stdlib.h>
#include <string.h>

char *ctl_socket(const char *option, const char *config)
{
	const char *environment = getenv("TOKEND_SOCKET");
	char path[WIRE_SOCKET_BYTES], why[1024], *copy;

	if (option || (environment && *environment) || !config) {
		copy = strdup(option ? option : place_socket(path));
	} else {
		struct config *loaded = config_load(config, why, sizeof(why));

		if (!loaded) {
			ctl_fail("%s", why);
			return NULL;
		}
		copy = strdup(loaded->has_socket ? loaded->socket : place_socket(path));
		config_free(loaded);
	}
	if (!copy)
		ctl_fail("out of memory");
	return copy;
}
