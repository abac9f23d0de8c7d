#include "client/ctl/offline/run_cursor.h"

#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "proto/phrases.h"
#include "proto/place.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks in each place of state. The first one counts. */
bool run_cursor_read(struct cursor *cursor, const struct ctl_stream *s, const char *run)
{
	const char *stream = s->stream->config->name;
	char tried[2 * PLACE_STATE_BYTES] = "";
	size_t used = 0;

	memset(cursor, 0, sizeof(*cursor));
	for (unsigned i = 0; i < PLACE_STATES && wire_name_ok(run); i++) {
		char path[PLACE_STATE_BYTES + 3 * LIMIT_NAME_BYTES];
		char *state = config_state_place(s->config, i);

		if (!state)
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s/" PLACE_RUN_CURSOR, state, stream, run);
		if (used < sizeof(tried))
			used += (size_t)snprintf(tried + used, sizeof(tried) - used, "%s%s/%s/%s",
				used ? ", " : "", state, stream, run);
		free(state);
		if (access(path, F_OK) == 0)
			return ctl_cursor_read(cursor, path, &s->stream->begin);
	}
	if (access(run, F_OK) == 0)
		return ctl_cursor_read(cursor, run, &s->stream->begin);
	if (!used)
		ctl_fail("--run %s: must be " PHRASE_NAME ", or a cursor's file", run);
	else
		ctl_fail("--run %s: no cursor of it in %s; tokend writes one there when a run "
			 "attaches",
			run, tried);
	return false;
}
