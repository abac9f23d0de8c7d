#include "client/ctl/offline/stream.h"

#include "client/ctl/common/error.h"

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream)
{
	struct fault fault;

	*s = (struct ctl_stream){.config = config_load(config, &fault)};
	if (s->config)
		s->catalog = catalog_open_stream(s->config, stream, &fault);
	if (s->catalog) {
		s->stream = catalog_stream(s->catalog, stream);
		return true;
	}
	ctl_fail("%s", fault.text);
	ctl_stream_close(s);
	return false;
}

void ctl_stream_close(struct ctl_stream *s)
{
	catalog_free(s->catalog);
	config_free(s->config);
	*s = (struct ctl_stream){0};
}
