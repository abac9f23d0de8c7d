#include "client/ctl/offline/stores.h"

#include "client/ctl/common/error.h"
#include "client/ctl/offline/scan.h"
#include "daemon/config/url_text.h"

#include <string.h>

enum { PATIENCE_MS = 60 * 1000 };

/* A store that does not answer is waited for: the user sees why nothing happens. */
static void note(void *none, const char *line)
{
	(void)none;
	ctl_note("%s", line);
}

struct stores *ctl_stores_open(const struct config *config, struct fault *fault)
{
	const struct store_options options = {.config = config,
		.memory_bytes = (uint64_t)CTL_GETS * 2 * CTL_DIGEST_TOKENS * sizeof(uint32_t),
		.patience_ms = PATIENCE_MS,
		.log = note};

	return store_open(&options, fault);
}

static bool is_url(const char *text)
{
	return text && url_text_is(text);
}

bool ctl_stores_needed(const struct config *config, const char *stream)
{
	for (uint32_t i = 0; i < config->streams; i++) {
		const struct config_stream *s = &config->stream[i];

		if (stream && strcmp(s->name, stream) != 0)
			continue;
		for (uint32_t d = 0; d < s->datasets; d++)
			if (is_url(s->dataset[d].path) || is_url(s->dataset[d].manifest) ||
				is_url(s->dataset[d].label_mask))
				return true;
	}
	return false;
}
