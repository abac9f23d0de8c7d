#include "daemon/control/server.h"

#include "daemon/control/log.h"
#include "daemon/control/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
	SECOND_MS = 1000,
	STOP_MOST_S = 10, /* the units' TimeoutStopSec= is longer */
	PACE_MS = 1,
	KEEPER_PATIENCE_MS = 3000, /* a stop waits so long for state_dir */
	SILENCE_MS = 10000, /* a connection that neither attached nor said anything for so long is
			       dropped */
};

/* Whatever the others wait for: none of it is worth more than the end, and nothing is lost by that.
 */
static void *leave_in_time(void *none)
{
	(void)none;
	sleep(STOP_MOST_S);
	log_line(LOG_WARNING, "stopping took %d s: leaving without waiting for storage any longer",
		STOP_MOST_S);
	log_flush();
	_exit(0);
}

static void stop(struct server *server)
{
	pthread_t late;

	if (server->stopping)
		return;
	server->stopping = true;
	notify("STOPPING=1");
	if (pthread_create(&late, NULL, leave_in_time, NULL) == 0)
		pthread_detach(late);
	uv_close((uv_handle_t *)&server->accept, NULL);
	metrics_stop(server->metrics);
	server->metrics = NULL;
	/* Trainers look for us again; the sooner the path is free the sooner they find our
	 * successor. */
	listener_close(server->listener);
	for (struct connection *c = server->connections, *next; c; c = next) {
		next = c->next;
		connection_close(c);
	}
}

/* With the last connection the rest of the loop may go. */
static void leave_if_done(struct server *server)
{
	if (!server->stopping || server->connections || server->sessions > 0 ||
		uv_is_closing((uv_handle_t *)&server->second))
		return;
	uv_close((uv_handle_t *)&server->second, NULL);
	uv_close((uv_handle_t *)&server->watchdog, NULL);
	uv_close((uv_handle_t *)&server->pace, NULL);
	uv_close((uv_handle_t *)&server->news, NULL);
	keeper_close(server->keeper);
	for (int i = 0; i < 2; i++)
		uv_close((uv_handle_t *)&server->signal[i], NULL);
}

static void on_signal(uv_signal_t *signal, int number)
{
	struct server *server = signal->data;

	log_line(LOG_NOTE, "%s: stopping, %" PRIu32 " sessions",
		number == SIGTERM ? "SIGTERM" : "SIGINT", server->sessions);
	stop(server);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
	(void)status, (void)events;
	connection_accept(poll->data);
}

/* Descriptors may have come back since we ran out of them. */
static void accept_again(struct server *server)
{
	if (server->spare_fd < 0)
		server->spare_fd = dup(STDERR_FILENO);
	if (server->spare_fd >= 0 && !uv_is_active((uv_handle_t *)&server->accept))
		uv_poll_start(&server->accept, UV_READABLE, on_accept);
}

static void on_pace(uv_timer_t *timer)
{
	struct server *server = timer->data;

	if (!pace_serve(server))
		uv_timer_stop(timer);
	if (!server->stopping)
		accept_again(server);
}

void server_pace(struct server *server)
{
	if (!uv_is_active((uv_handle_t *)&server->pace))
		uv_timer_start(&server->pace, on_pace, PACE_MS, PACE_MS);
}

static void on_news(uv_async_t *async)
{
	struct server *server = async->data;
	uint32_t id;
	unsigned news;

	while (feeder_take(server->feeder, &id, &news))
		session_news(server, id, news);
}

static void ring_news(void *context)
{
	struct server *server = context;

	uv_async_send(&server->news);
}

static void on_second(uv_timer_t *timer)
{
	struct server *server = timer->data;
	uint64_t now = uv_now(&server->loop);
	bool any = false;

	errand_watch(server);
	hang_clock(server);
	for (struct connection *c = server->connections, *next; c; c = next) {
		next = c->next;
		errand_clock(c);
		any |= c->session && !c->closing;
		if (c->session) {
			session_clock(c->session, now);
			twins_clock(c->session, now);
		} else if (now - c->since_ms > SILENCE_MS && c->jobs == 0 && !c->request)
			connection_close(c);
	}
	pace_clean(&server->paces, now);
	if (!server->stopping)
		accept_again(server);
	if (any)
		server->lonely_since_ms = now;
	if (server->options->linger_s > 0 &&
		now - server->lonely_since_ms >= server->options->linger_s * UINT64_C(1000)) {
		log_line(LOG_NOTE, "no session for %u s: leaving", server->options->linger_s);
		stop(server);
	}
}

static void on_watchdog(uv_timer_t *timer)
{
	struct server *server = timer->data;

	/* Trainers wait for the data thread, so it is watched, too. */
	if (feeder_answers(server->feeder))
		notify("WATCHDOG=1");
}

/* Takes back what start() has done so far. */
static void give_up(struct server *server)
{
	unsigned left;

	metrics_stop(server->metrics);
	if (server->keeper) {
		keeper_close(server->keeper);
		uv_run(&server->loop, UV_RUN_NOWAIT);
		keeper_stop(server->keeper, 0, &left);
	}
	runs_free(server->runs);
	quotas_free(server->quotas);
	feeder_stop(server->feeder);
	server->feeder = NULL;
	listener_close(server->listener);
}

static bool start(struct server *server, char *why, size_t why_bytes)
{
	const struct server_options *o = server->options;
	uint64_t watchdog = notify_watchdog_ms();

	/* From listener_end_on_signals(). */
	for (int i = 0; i < 2; i++) {
		uv_signal_init(&server->loop, &server->signal[i]);
		server->signal[i].data = server;
		uv_signal_start(&server->signal[i], on_signal, i ? SIGINT : SIGTERM);
	}
	server->feeder =
		feeder_start(o->reader, o->depth, o->catalog->config->streams, ring_news, server);
	if (!server->feeder) {
		snprintf(why, why_bytes, "cannot start the data thread: %s", strerror(errno));
		reader_close(o->reader);
		listener_close(server->listener);
		return false;
	}
	if (o->catalog->config->metrics) {
		server->metrics =
			metrics_start(server, o->catalog->config->metrics, why, why_bytes);
		if (!server->metrics && !server->listener->handed) {
			give_up(server);
			return false;
		}
		/* Somebody's notebook does not stop for a port that another one has. */
		if (!server->metrics)
			log_line(LOG_WARNING, "%s; going on without metrics", why);
	}
	server->quotas = quotas_new(o->catalog->config, o->connections);
	server->keeper = server->quotas ? keeper_start(&server->loop) : NULL;
	if (!server->keeper || !runs_start(server)) {
		snprintf(why, why_bytes, "cannot start the thread for state_dir: %s",
			strerror(errno));
		give_up(server);
		return false;
	}
	uv_poll_init(&server->loop, &server->accept, server->listener->fd);
	server->accept.data = server;
	uv_poll_start(&server->accept, UV_READABLE, on_accept);
	uv_timer_init(&server->loop, &server->second);
	server->second.data = server;
	uv_timer_start(&server->second, on_second, SECOND_MS, SECOND_MS);
	uv_timer_init(&server->loop, &server->pace);
	server->pace.data = server;
	uv_timer_init(&server->loop, &server->watchdog);
	server->watchdog.data = server;
	if (watchdog)
		uv_timer_start(&server->watchdog, on_watchdog, watchdog, watchdog);
	return true;
}

/* One turn of the loop at a time, so that the end of the last connection is seen wherever it came
 * from. */
static void serve(struct server *server)
{
	while (uv_run(&server->loop, UV_RUN_ONCE) != 0)
		leave_if_done(server);
}

static void close_handle(uv_handle_t *handle, void *none)
{
	(void)none;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

/* Entries of mix logs may still have to be written. */
static void end_keeper(struct server *server)
{
	unsigned left;

	if (!keeper_stop(server->keeper, KEEPER_PATIENCE_MS, &left))
		log_line(LOG_WARNING,
			"state_dir %s does not answer: leaving without %u entries of mix logs, "
			"which are "
			"written at "
			"the next attach",
			server->options->catalog->config->state_dir, left);
	runs_free(server->runs);
	quotas_free(server->quotas);
}

int server_run(const struct server_options *options)
{
	struct server *server = calloc(1, sizeof(*server));
	char why[LIMIT_TEXT_BYTES];

	if (!server || uv_loop_init(&server->loop) < 0) {
		log_line(LOG_ERROR, "out of memory");
		free(server);
		reader_close(options->reader);
		return 1;
	}
	server->options = options;
	server->listener = options->listener;
	/* Numbers grow from one daemon to the next, and those of two nodes are not the same. */
	uint32_t chance = 0;

	if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) < 0)
		chance = (uint32_t)getpid();
	server->asked = (uint64_t)time(NULL) << 31 | chance >> 2;
	server->memory_bytes = options->staging_bytes;
	paces_init(&server->paces);
	uv_async_init(&server->loop, &server->news, on_news);
	server->news.data = server;
	if (!start(server, why, sizeof(why))) {
		log_line(LOG_ERROR, "%s", why);
		uv_walk(&server->loop, close_handle, NULL);
		uv_run(&server->loop, UV_RUN_DEFAULT);
		uv_loop_close(&server->loop);
		free(server);
		return 1;
	}
	server->spare_fd = dup(STDERR_FILENO);
	server->started_ms = server->lonely_since_ms = uv_now(&server->loop);
	log_line(LOG_NOTE, "ready at %s",
		server->listener->path[0] ? server->listener->path : "systemd's socket");
	notify("READY=1");
	serve(server);
	end_keeper(server);
	feeder_stop(server->feeder);
	if (server->spare_fd >= 0)
		close(server->spare_fd);
	uv_loop_close(&server->loop);
	requests_free(server);
	paces_free(&server->paces);
	free(server);
	return 0;
}
