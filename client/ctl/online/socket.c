#include "client/ctl/online/socket.h"

#include "client/ctl/common/error.h"
#include "client/lib/tokend.h"
#include "daemon/config/config.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

char *ctl_socket(const char *option, const char *config)
{
	const char *environment = getenv("TOKEND_SOCKET"), *named = option;
	char path[WIRE_SOCKET_BYTES], *copy;
	struct config *loaded = NULL;
	struct fault fault;

	if (!named && environment && *environment)
		named = environment;
	if (!named && config) {
		loaded = config_load(config, &fault);
		if (!loaded) {
			ctl_fail("%s", fault.text);
			return NULL;
		}
		named = loaded->has_socket ? loaded->socket : NULL;
	}
	if (!named && tokend_default_socket(path, sizeof(path)) == 0)
		named = path;
	copy = named ? strdup(named) : NULL;
	config_free(loaded);
	if (!copy)
		ctl_fail(PHRASE_MEMORY);
	return copy;
}
