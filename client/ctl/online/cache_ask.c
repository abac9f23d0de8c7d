#include "client/ctl/online/cache_ask.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

json_t *ctl_cache_ask(struct ctl_link *l, const char *kind, const char *dataset)
{
	struct wire query = {.op = WIRE_CACHE};
	struct wire_bytes args;
	json_t *all;

	wire_set_text(&query, WIRE_KIND, kind);
	if (dataset)
		wire_set_text(&query, WIRE_DATASET, dataset);
	if (!ctl_ask(l, &query, WIRE_CACHE, NULL, NULL))
		return NULL;
	args = wire_bytes(&l->packet.wire, WIRE_ARGS);
	all = wire_has(&l->packet.wire, WIRE_ARGS) ? json_loadb(args.at, args.n, 0, NULL) : NULL;
	if (!json_is_object(all)) {
		ctl_fail("unexpected message from the daemon: args: not JSON; " PHRASE_RELEASE);
		json_decref(all);
		return NULL;
	}
	return all;
}
