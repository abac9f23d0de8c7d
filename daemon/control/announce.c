#include "daemon/control/control.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void announce_ready(const struct control *control, const char *path)
{
	const struct catalog *catalog = control->catalog;
	char text[LIMIT_TEXT_BYTES] = ""; /* is cut: tokctl status --json has all */
	FILE *to = fmemopen(text, sizeof(text) - 1, "w");

	for (uint32_t i = 0; to && i < catalog->config->streams; i++) {
		const struct stream *stream = &catalog->stream[i];

		fprintf(to, "%s%s (", i ? "; " : "", stream->config->name);
		for (uint32_t d = 0; d < stream->config->datasets; d++)
			fprintf(to, "%s%s %016" PRIx64, d ? ", " : "",
				stream->config->dataset[d].name, stream->dataset[d].digest);
		fprintf(to, ")");
	}
	if (to)
		fclose(to);
	log_line(LOG_NOTE,
		"ready at %s: version %s, config %s with digest %016" PRIx64 ", streams %s", path,
		TOKEND_VERSION, control->config->path, control->config->digest, text);
}

void announce_state(struct control *control, bool ready)
{
	struct stream_gauges all = status_gauges(control, NULL);
	const char *refused = control->reload.refused;
	uint32_t streams = control->config->streams;
	char text[sizeof(control->announced)];

	snprintf(text, sizeof(text),
		"READY=1\nSTATUS=%u session%s, %" PRIu32 " stream%s, %u waiting%s%s", all.sessions,
		all.sessions == 1 ? "" : "s", streams, streams == 1 ? "" : "s", all.waiting,
		refused[0] ? "; config not read again: " : "", refused);
	if (!ready && strcmp(text, control->announced) == 0)
		return;
	memcpy(control->announced, text, sizeof(text));
	notify(ready ? text : strchr(text, '\n') + 1);
}
