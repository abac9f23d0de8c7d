#include "client/ctl/offline/stream.h"

#include "client/ctl/common/error.h"

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream)
{
	char why[8192];

	*s = (struct ctl_stream){.config = config_load(config, why, sizeof(why))};
	if (s->config)
		s->catalog = catalog_open_stream(s->config, stream, why, sizeof(why));
	if (s->catalog) {
		s->stream = catalog_stream(s->catalog, stream);
		return true;
	}
	ctl_fail("%s", why);
	ctl_stream_close(s);
	return false;
}

void ctl_stream_close(struct ctl_stream *s)
{
	catalog_free(s->catalog);
	config_free(s->config);
	*s = (struct ctl_stream){0};
}
