#include "daemon/control/control.h"
#include "proto/version.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
	SECOND_MS = 1000,
	STOP_MOST_S = 7,    /* must be below TimeoutStopSec= in systemd/ */
	SILENCE_MS = 10000, /* an idle connection without a session is closed then */
};

int thread_start(pthread_t *thread, void *(*work)(void *), void *context)
{
	sigset_t all, before;
	pthread_t own;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread ? thread : &own, NULL, work, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!thread && !error)
		pthread_detach(own);
	return error;
}

/* Ends the process while other threads hang. They may still use any memory, so nothing is freed;
 * nothing is lost by that. */
static void *leave_in_time(void *none)
{
	(void)none;
	sleep(STOP_MOST_S);
	log_line(LOG_WARNING,
		"not stopped after %d s, because storage or state_dir does not answer: exiting now",
		STOP_MOST_S);
	log_flush();
	_exit(0);
	return NULL;
}

static void stop(struct control *control)
{
	if (control->stopping)
		return;
	control->stopping = true;
	notify("STOPPING=1");
	thread_start(NULL, leave_in_time, NULL);
	reload_stop(&control->reload);
	if (control->options->stores)
		store_stop(control->options->stores);
	connections_stop(control);
}

bool server_terminal(void)
{
	int fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static void on_signal(uv_signal_t *signal, int number)
{
	struct control *control = signal->data;
	const char *what = number == SIGTERM  ? "SIGTERM"
			   : number == SIGINT ? "SIGINT"
					      : "SIGHUP, and the terminal is closed";

	if (control->stopping)
		return;
	if (number == SIGHUP && (!control->options->kept->terminal || server_terminal())) {
		reload_begin(&control->reload);
		return;
	}
	log_line(LOG_NOTE, "%s: stopping, %" PRIu32 " sessions", what, control->sessions.n);
	stop(control);
}

/* Replaces main()'s handlers. SIGHUP was blocked until now, unless there is a terminal. */
static void start_signals(struct control *control)
{
	const int number[] = {SIGTERM, SIGINT, SIGHUP};
	sigset_t hangup;

	for (int i = 0; i < 3; i++) {
		uv_signal_init(control->loop, &control->signal[i]);
		control->signal[i].data = control;
		uv_signal_start(&control->signal[i], on_signal, number[i]);
	}
	sigemptyset(&hangup);
	sigaddset(&hangup, SIGHUP);
	pthread_sigmask(SIG_UNBLOCK, &hangup, NULL);
}

static void on_news(uv_async_t *async)
{
	struct control *control = async->data;

	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		struct session *s = control->sessions.of[id];
		unsigned news = s ? atomic_exchange(&s->news, 0) : 0;

		if (news)
			session_news(s, news);
	}
}

/* Trainers wait for the data thread, so systemd's watchdog covers it too. */
static void watch_data_thread(struct control *control)
{
	uint64_t now = uv_now(control->loop);
	uint64_t turns = data_thread_turns(control->data_thread);

	if (turns != control->turns)
		control->turned_ms = now;
	control->turns = turns;
	if (now - control->turned_ms < notify_watchdog_ms())
		notify("WATCHDOG=1");
}

static void on_second(uv_timer_t *timer)
{
	struct control *control = timer->data;
	uint64_t now = uv_now(control->loop);
	struct connection *c;
	bool any = false;

	sessions_check(&control->sessions);
	assert(control->sessions.n <= control->connections.n);
	watch_data_thread(control);
	compare_clock(control);
	status_clock(control);
	connections_retry(control);
	LIST_FOREACH(c, &control->connections.open, others)
	{
		state_clock(c);
		any |= c->session && !c->closing;
		if (c->session) {
			session_clock(c->session, now);
			twins_clock(c->session, now);
		} else if (now - c->since_ms > SILENCE_MS && c->jobs == 0 && !c->request)
			connection_close(c);
	}
	if (!control->stopping)
		status_notify(control, false);
	if (any)
		control->lonely_since_ms = now;
	if (!control->stopping && control->options->linger_s > 0 &&
		now - control->lonely_since_ms >= control->options->linger_s * UINT64_C(1000)) {
		log_line(LOG_NOTE, "stopping: no session for %u s (--linger)",
			control->options->linger_s);
		stop(control);
	}
}

static void no_work(uv_work_t *work)
{
	(void)work;
}

static void on_abort(int number)
{
	static const char text[] = "tokend: out of memory or threads\n";

	(void)number;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

/*
 * Begins the loop, and has libuv make its pool: a thread for each stream, whose storage may hang,
 * and its usual four. They take no signals: a reload leaves them pending. Without memory or threads
 * libuv aborts. False: out of memory.
 */
static bool start_loop(uv_loop_t *loop, const struct config *config)
{
	static uv_work_t work;
	sigset_t all, before;
	char threads[16];
	bool started;

	snprintf(threads, sizeof(threads), "%" PRIu32, config->streams + 4);
	setenv("UV_THREADPOOL_SIZE", threads, true);
	signal(SIGABRT, on_abort);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = uv_loop_init(loop) == 0;
	if (started)
		uv_queue_work(loop, &work, no_work, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	signal(SIGABRT, SIG_DFL);
	return started;
}

static void init(struct control *control, uv_loop_t *loop, const struct server_options *o)
{
	control->options = o;
	control->loop = loop;
	control->catalog = o->catalog;
	control->config = o->catalog->config;
	control->users =
		(struct users){.config = control->config, .connections = o->reading->sessions};
	control->sessions.staging_bytes = control->sessions.memory_bytes = o->reading->memory_bytes;
	control->reload.control = control;
	control->counts.begun_s = time(NULL);
	control->started_ms = control->turned_ms = control->lonely_since_ms = uv_now(loop);
	state_init(&control->state, loop, o->state_dir);
	requests_init(&control->requests);
	uv_timer_init(loop, &control->reload.timer);
	uv_timer_init(loop, &control->second);
	uv_async_init(loop, &control->news, on_news);
	control->second.data = control->news.data = control;
}

static bool start(struct control *control, struct fault *fault)
{
	start_signals(control);
	if (counts_join(&control->counts, control->catalog))
		control->data_thread = data_thread_start(control, fault);
	else
		fault_memory(fault);
	if (!control->data_thread) {
		reader_close(control->options->reading->reader);
		listener_close(&control->options->kept->listener);
		return false;
	}
	connections_start(control);
	uv_timer_start(&control->second, on_second, SECOND_MS, SECOND_MS);
	return true;
}

static void close_handle(uv_handle_t *handle, void *none)
{
	(void)none;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

int server_run(const struct server_options *options)
{
	struct control *control = calloc(1, sizeof(*control));
	const char *path = options->kept->listener.path;
	uv_loop_t loop;
	struct fault fault;
	bool started;

	if (!control || !start_loop(&loop, options->catalog->config)) {
		free(control);
		reader_close(options->reading->reader);
		return notify_failed_start("out of memory");
	}
	init(control, &loop, options);
	started = start(control, &fault);
	if (started) {
		log_line(LOG_NOTE,
			"ready at %s: version %s, config %s with digest %016" PRIx64 ", %" PRIu32
			" stream%s",
			path[0] ? path : "systemd's socket", TOKEND_VERSION, control->config->path,
			control->config->digest, control->config->streams,
			control->config->streams == 1 ? "" : "s");
		notify_starting(false);
		status_notify(control, true);
		while (!control->stopping || control->connections.n > 0 ||
			control->sessions.n > 0 || pool_busy(control))
			uv_run(&loop, UV_RUN_ONCE);
		users_free(&control->users);
		data_thread_stop(control->data_thread);
	} else {
		notify_failed_start(fault.text);
	}
	uv_walk(&loop, close_handle, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	uv_loop_close(&loop);
	requests_free(&control->requests);
	counts_free(&control->counts);
	free(control);
	return started ? 0 : 1;
}
