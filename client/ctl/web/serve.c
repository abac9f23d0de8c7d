/*
 * tokctl serve: the status of a daemon over HTTP, for Prometheus and for people. The daemon is
 * asked at most four times a second, and for at most a twentieth of the time, however many clients
 * there are.
 */
#include "client/ctl/common/ctl.h"
#include "client/ctl/online/talk.h"
#include "client/ctl/web/web.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum {
	FRESH_MS = 250,
	FRESH_MOST_MS = 2000,
	REST = 20,
	SILENT_MS = 5000,     /* of the data thread */
	STATE_DIR_MS = 20000, /* then saves fail */
	SESSIONS_LISTED = 256,
};

static const char away[] = "the daemon does not answer\n";

struct served {
	const struct ctl_arguments *a;
	bool sessions;
	struct ctl_link link;
	json_t *status; /* NULL: the daemon does not answer */
	uint64_t fresh_until_ms;
};

static void refresh(struct served *s)
{
	uint64_t begin = ctl_clock_ms(), rest;
	bool was_there = s->status || s->fresh_until_ms == 0;

	if (begin < s->fresh_until_ms)
		return;
	json_decref(s->status);
	s->status = NULL;
	if (ctl_connect(&s->link, s->a)) {
		s->status = ctl_ask_status(&s->link, true, NULL, NULL);
		ctl_disconnect(&s->link);
	}
	if (was_there && !s->status) /* the reason names directories, so it is not served */
		ctl_fail("%s", s->link.why);
	else if (!was_there && s->status)
		ctl_note("the daemon answers again");
	rest = (ctl_clock_ms() - begin) * REST;
	rest = rest > FRESH_MS ? rest : FRESH_MS;
	s->fresh_until_ms = ctl_clock_ms() + (rest < FRESH_MOST_MS ? rest : FRESH_MOST_MS);
}

/* The page's files are part of the program: it serves without a directory of its own. */
#define EMBED(name, path)                                                                          \
	__asm__(".section .rodata\n" #name ":\n.incbin \"" path "\"\n" #name                       \
		"_end:\n.byte 0\n.previous\n");                                                    \
	extern const char name[] __attribute__((visibility("hidden"))),                            \
		name##_end[] __attribute__((visibility("hidden")))

EMBED(page_html, "client/ctl/web/page.html");
EMBED(page_css, "client/ctl/web/page.css");
EMBED(page_js, "client/ctl/web/page.js");

/* Prometheus gets the answer that the daemon is away: no answer means that tokctl serve is. */
static bool put_metrics(struct served *s, FILE *to)
{
	metrics_write(to, s->status, s->sessions);
	return true;
}

static bool put_status(struct served *s, FILE *to)
{
	json_t *sessions = json_object_get(s->status, "sessions");

	if (!s->status)
		fputs(away, to);
	while (json_array_size(sessions) > SESSIONS_LISTED && !s->sessions)
		json_array_remove(sessions, json_array_size(sessions) - 1);
	return s->status &&
	       json_dumpf(s->status, to,
		       JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) == 0;
}

static bool put_health(struct served *s, FILE *to)
{
	uint64_t silent_ms = status_number(json_object_get(s->status, "daemon"), "silent_ms");
	bool healthy = s->status && silent_ms < SILENT_MS;

	if (healthy)
		fputs("ok\n", to);
	else if (s->status)
		fprintf(to, "the data thread has not answered for %" PRIu64 " s\n",
			silent_ms / 1000);
	else
		fputs(away, to);
	return healthy;
}

/* Ready: a trainer that attaches to any stream would get data. */
static bool put_readiness(struct served *s, FILE *to)
{
	uint64_t busy_ms = status_number(json_object_get(s->status, "state_dir"), "busy_ms");
	json_t *stream;
	bool ready = busy_ms < STATE_DIR_MS;
	size_t i;

	if (!ready)
		fprintf(to, "state_dir has not answered for %" PRIu64 " s\n", busy_ms / 1000);
	json_array_foreach(json_object_get(s->status, "streams"), i, stream)
	{
		if (status_number(stream, "slow_ms") == 0)
			continue;
		ready = false;
		fprintf(to, "storage of stream %s has not answered for %" PRIu64 " s\n",
			status_text(stream, "stream"), status_number(stream, "slow_ms") / 1000);
	}
	return ready && put_health(s, to);
}

static const char plain[] = "text/plain; charset=utf-8";
static const struct {
	const char *path, *type;
	bool (*put)(struct served *s, FILE *to); /* false: status 503; NULL: a file */
	const char *file, *end;
} routes[] = {
	{"/", "text/html; charset=utf-8", NULL, page_html, page_html_end},
	{"/page.css", "text/css; charset=utf-8", NULL, page_css, page_css_end},
	{"/page.js", "text/javascript; charset=utf-8", NULL, page_js, page_js_end},
	{"/status.json", "application/json", put_status, NULL, NULL},
	{"/metrics", "text/plain; version=0.0.4; charset=utf-8", put_metrics, NULL, NULL},
	{"/healthz", plain, put_health, NULL, NULL},
	{"/readyz", plain, put_readiness, NULL, NULL},
};

static unsigned answer(void *context, const char *path, FILE *to, const char **type)
{
	const size_t n = sizeof(routes) / sizeof(routes[0]);
	bool done = true;
	size_t i = 0;

	while (i < n && strcmp(path, routes[i].path) != 0)
		i++;
	if (i == n) {
		fputs("not found; served here:", to);
		for (i = 0; i < n; i++)
			fprintf(to, " %s", routes[i].path);
		fputc('\n', to);
		return 404;
	}
	if (routes[i].put) {
		refresh(context);
		done = routes[i].put(context, to);
	} else {
		fwrite(routes[i].file, 1, (size_t)(routes[i].end - routes[i].file), to);
	}
	if (done)
		*type = routes[i].type;
	return done ? 200 : 503;
}

enum { SOCKET, CONFIG, LISTEN, HOST, SESSIONS };

static const struct ctl_option options[] = {
	[SOCKET] = {CTL_SOCKET_OPTION},
	[CONFIG] = {CTL_CONFIG_OPTION},
	[LISTEN] = {OPTION_TEXT(
		"listen", "ADDRESS", "HOST:PORT with a numeric host; default: 127.0.0.1:9464")},
	[HOST] = {OPTION_LIST("host", "NAME", "a name under which clients know this node")},
	[SESSIONS] = {OPTION_FLAG(
		"sessions", "metrics have series for each session, with its run and rank")},
};

static int serve(const struct ctl_arguments *a)
{
	const char *address = ctl_given(a, LISTEN) ? ctl_text(a, LISTEN) : "127.0.0.1:9464";
	struct served s = {.a = a, .sessions = ctl_given(a, SESSIONS), .link.quiet = true};
	int fd = http_listen(address);

	if (fd < 0)
		return CTL_FAILED;
	ctl_note("serving at http://%s/", address);
	http_serve(&(struct http){a->value[HOST].list, a->value[HOST].count, answer, &s}, fd);
	close(fd);
	return CTL_FAILED;
}

const struct ctl_command ctl_serve = {
	.name = "serve",
	.help = "serve metrics and a live page of a daemon over HTTP",
	OPTIONS_ARE(options),
	.run = serve,
};
