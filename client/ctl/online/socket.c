#include "client/ctl/online/socket.h"

#include "client/ctl/common/error.h"
#include "client/ctl/online/private.h"
#include "client/lib/tokend.h"
#include "daemon/config/config.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

/*
 * The socket of the private daemon of @config in @path, if there is one and the daemon at @named
 * does not serve this file.
 */
static bool is_private(const char *config, const char *named, char path[WIRE_SOCKET_BYTES])
{
	char *whole = realpath(config, NULL);
	struct fault fault;
	bool private = whole && private_socket(whole, path) && private_exists(path) &&
		       private_ask(named, whole, PRIVATE_ASK_MS, -1, &fault) != PRIVATE_SERVES;

	free(whole);
	return private;
}

char *ctl_socket(const char *option, const char *config)
{
	const char *environment = getenv("TOKEND_SOCKET"), *named = option;
	char path[WIRE_SOCKET_BYTES], own[WIRE_SOCKET_BYTES], *copy;
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
	if (loaded && named && is_private(config, named, own))
		named = own;
	copy = named ? strdup(named) : NULL;
	config_free(loaded);
	if (!copy)
		ctl_fail(PHRASE_MEMORY);
	return copy;
}
