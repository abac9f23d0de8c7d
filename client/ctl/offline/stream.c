#include "client/ctl/offline/stream.h"

#include "client/ctl/common/error.h"
#include "client/ctl/offline/shards.h"

static bool open_stream(struct ctl_stream *s, const char *config, const char *stream, bool all)
{
	struct fault fault;

	*s = (struct ctl_stream){.config = config_load(config, &fault)};
	if (s->config && !config_stream(s->config, stream))
		all = false; /* it is refused */
	bool needed = s->config && ctl_stores_needed(s->config, all ? NULL : stream);

	if (needed)
		s->stores = ctl_stores_open(s->config, &fault);
	if (s->config && (s->stores || !needed))
		s->catalog = all ? catalog_open(s->config, s->stores, &fault)
				 : catalog_open_stream(s->config, s->stores, stream, &fault);
	if (s->catalog) {
		s->stream = catalog_stream(s->catalog, stream);
		return true;
	}
	ctl_fail("%s", fault.text);
	ctl_stream_close(s);
	return false;
}

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream)
{
	return open_stream(s, config, stream, false);
}

bool ctl_stream_open_all(struct ctl_stream *s, const char *config, const char *stream)
{
	return open_stream(s, config, stream, true);
}

void ctl_stream_close(struct ctl_stream *s)
{
	catalog_free(s->catalog);
	store_close(s->stores);
	config_free(s->config);
	*s = (struct ctl_stream){0};
}
