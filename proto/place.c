#include "proto/place.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool place_own(const char *runtime, uint64_t uid, const char *name, char path[WIRE_SOCKET_BYTES])
{
	int n;

	if (runtime && runtime[0] != '/')
		return false;
	n = runtime ? snprintf(path, WIRE_SOCKET_BYTES, "%s/tokend/%s", runtime, name)
		    : snprintf(path, WIRE_SOCKET_BYTES, "/tmp/tokend-%" PRIu64 "/%s", uid, name);
	return n > 0 && n < WIRE_SOCKET_BYTES;
}

static void add(struct places *places, enum place_from from, const char *path)
{
	places->place[places->n++] = (struct place){from, path};
}

void places_list(struct places *places, const struct place_setting *setting)
{
	const char *named[] = {[PLACE_OPTION] = setting->option,
		[PLACE_ENVIRONMENT] = setting->environment,
		[PLACE_CONFIG] = setting->config};

	places->n = 0;
	for (int from = PLACE_OPTION; from <= PLACE_CONFIG; from++)
		if (named[from] && named[from][0]) {
			add(places, (enum place_from)from, named[from]);
			return;
		}
	if (setting->runtime &&
		place_own(setting->runtime, setting->uid, "tokend.sock", places->own[0]))
		add(places, PLACE_OWN, places->own[0]);
	place_own(NULL, setting->uid, "tokend.sock", places->own[1]);
	add(places, PLACE_OWN, places->own[1]);
	add(places, PLACE_DEFAULT, WIRE_SOCKET);
}

bool place_state(
	const struct place_state_setting *setting, unsigned i, char path[PLACE_STATE_BYTES])
{
	const char *home = setting->state_home;
	const char *colon = setting->given ? strchr(setting->given, ':') : NULL;
	bool xdg = home && home[0] == '/';
	int n = -1;

	if (i == 0 && setting->config && setting->config[0])
		n = snprintf(path, PLACE_STATE_BYTES, "%s", setting->config);
	else if (i == 0 && setting->given && setting->given[0] == '/')
		n = snprintf(path, PLACE_STATE_BYTES, "%.*s",
			colon ? (int)(colon - setting->given) : PLACE_STATE_BYTES, setting->given);
	else if (i == 0)
		n = snprintf(path, PLACE_STATE_BYTES, "%s", PLACE_STATE_DIR);
	else if (i == 1 && (xdg || (setting->home && setting->home[0] == '/')))
		n = snprintf(path, PLACE_STATE_BYTES, "%s%s/tokend/%016" PRIx64,
			xdg ? home : setting->home, xdg ? "" : "/.local/state",
			setting->config_hash);
	return n > 0 && n < PLACE_STATE_BYTES;
}
