#include "daemon/control/web.h"

#include "daemon/control/control.h"
#include "daemon/control/metrics.h"
#include "daemon/control/page.h"

#include <inttypes.h>

enum { OK = 200, UNAVAILABLE = 503, SILENT_MS = 5000 };

static const char plain[] = "text/plain; charset=utf-8";

static unsigned metrics(void *context, FILE *to)
{
	metrics_write(context, to);
	return OK;
}

/* The loop itself answers, as this is called. */
static bool is_healthy(const struct control *control, FILE *to)
{
	uint64_t silent = uv_now(control->loop) - control->turned_ms;

	if (silent < SILENT_MS)
		return true;
	fprintf(to, "the data thread has not answered for %" PRIu64 " s\n", silent / 1000);
	return false;
}

static unsigned healthz(void *context, FILE *to)
{
	if (!is_healthy(context, to))
		return UNAVAILABLE;
	fputs("ok\n", to);
	return OK;
}

/* Ready: a trainer that attaches to any stream would get data. */
static unsigned readyz(void *context, FILE *to)
{
	const struct control *control = context;
	uint64_t busy_ms = keeper_busy_ms(control->keeper);
	bool ready = is_healthy(control, to);

	if (busy_ms >= KEEPER_DEADLINE_MS) {
		ready = false;
		fprintf(to, "state_dir has not answered for %" PRIu64 " s\n", busy_ms / 1000);
	}
	for (uint32_t i = 0; i < control->config->streams; i++) {
		if (hang_of(&control->hangs, &control->catalog->stream[i])->ticks == 0)
			continue;
		ready = false;
		fprintf(to, "storage of stream %s has not answered for %u s\n",
			control->config->stream[i].name,
			hang_of(&control->hangs, &control->catalog->stream[i])->ticks);
	}
	if (ready)
		fputs("ok\n", to);
	return ready ? OK : UNAVAILABLE;
}

struct http *web_start(struct control *control, const char *address, int fd, struct fault *fault)
{
	static const struct http_route routes[] = {
		{"/", "text/html; charset=utf-8", page_html},
		{"/page.css", "text/css; charset=utf-8", page_css},
		{"/page.js", "text/javascript; charset=utf-8", page_js},
		{"/status.json", "application/json", page_status},
		{"/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics},
		{"/healthz", plain, healthz},
		{"/readyz", plain, readyz},
		{0},
	};

	struct http *http = http_start(control->loop, address, fd, routes, control, fault);

	if (http)
		process_open(&control->process);
	return http;
}

void web_stop(struct control *control, struct http *http)
{
	http_stop(http);
	if (http)
		process_close(&control->process);
}
