#include "daemon/control/announce.h"

#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "daemon/control/notify.h"
#include "daemon/control/status.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Adds "STREAM (DATASET DIGEST, …)" to @text, which has @n of @room bytes. False: no room. */
static bool add_stream(const struct stream *stream, char *text, size_t *n, size_t room)
{
	size_t at = *n;

	at += (size_t)snprintf(text + at, room - at, "%s (", stream->config->name);
	for (uint32_t d = 0; at < room && d < stream->config->datasets; d++)
		at += (size_t)snprintf(text + at, room - at, "%s%s %016" PRIx64, d ? ", " : "",
			stream->config->dataset[d].name, stream->dataset[d].digest);
	if (at < room)
		at += (size_t)snprintf(text + at, room - at, ")");
	if (at >= room) {
		text[*n] = 0;
		return false;
	}
	*n = at;
	return true;
}

void announce_ready(const struct control *control, const char *path)
{
	const struct catalog *catalog = control->catalog;
	uint32_t i = 0, streams = catalog->config->streams;
	char text[LIMIT_TEXT_BYTES] = "", more[64] = "";
	size_t n = 0;

	for (; i < streams && n + 3 < sizeof(text); i++) {
		size_t before = n;

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", i ? "; " : "");
		if (add_stream(&catalog->stream[i], text, &n, sizeof(text)))
			continue;
		text[before] = 0;
		break;
	}
	if (i < streams)
		snprintf(more, sizeof(more), "%sand %" PRIu32 " more: tokctl status --json",
			i ? "; " : "", streams - i);
	log_line(LOG_NOTE,
		"ready at %s: version %s, config %s with digest %016" PRIx64 ", streams %s%s", path,
		TOKEND_VERSION, control->config->path, control->config->digest, text, more);
}

void announce_state(struct control *control, bool reloaded)
{
	struct stream_gauges all = status_gauges(control, NULL);
	char text[sizeof(control->announced)];

	snprintf(text, sizeof(text),
		"READY=1\nSTATUS=%u session%s, %" PRIu32 " stream%s, %u waiting", all.sessions,
		all.sessions == 1 ? "" : "s", control->config->streams,
		control->config->streams == 1 ? "" : "s", all.waiting);
	if (control->reload.refused[0]) {
		size_t n = strlen(text);

		snprintf(text + n, sizeof(text) - n, "; config not read again: %s",
			control->reload.refused);
	}
	if (!reloaded && strcmp(text, control->announced) == 0)
		return;
	memcpy(control->announced, text, sizeof(text));
	notify(reloaded ? text : strchr(text, '\n') + 1);
}
