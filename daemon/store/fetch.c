/*
 * The fetch thread. It waits in epoll for libcurl's sockets and for new GETs. Nothing in it blocks.
 */
#include "daemon/store/internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { EVENTS = 64, CHECK_MS = 100, STACK_BYTES = 512 * 1024 };

/* ---- libcurl's sockets and timer ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *known)
{
	struct stores *stores = context;
	struct epoll_event event = {.data.fd = fd};

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(stores->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events =
		(what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
	epoll_ctl(stores->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
	stores->curl->multi_assign(stores->multi, fd, stores);
	return 0;
}

static int on_timer(CURLM *multi, long ms, void *context)
{
	struct stores *stores = context;

	(void)multi;
	stores->curl_due_ms = ms < 0 ? INT64_MAX : stores_now_ms() + ms;
	return 0;
}

static void act(struct stores *stores, curl_socket_t fd, uint32_t events)
{
	int running, what = (events & EPOLLIN ? CURL_CSELECT_IN : 0) |
			    (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
			    (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);

	stores->curl->multi_socket_action(stores->multi, fd, what, &running);
}

/* ---- GETs ---- */

/* Hands it to its reading. */
static void end_get(struct stores *stores, struct get *get, CURLcode code)
{
	stores->curl->multi_remove_handle(stores->multi, get->easy);
	TAILQ_REMOVE(&stores->gets, get, link);
	get_judge(get, code);
	pthread_mutex_lock(&stores->lock);
	get->ended = true;
	if (get->reading)
		pthread_cond_signal(&get->reading->wake);
	else
		get_release(get);
	pthread_mutex_unlock(&stores->lock);
}

static void end_gets(struct stores *stores)
{
	struct CURLMsg *message;
	int left;

	while ((message = stores->curl->multi_info_read(stores->multi, &left))) {
		CURLcode code = message->data.result;
		struct get *get = NULL;

		if (message->msg != CURLMSG_DONE)
			continue;
		stores->curl->easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &get);
		end_get(stores, get, code);
	}
}

/* Takes new GETs. False: the thread ends. */
static bool begin_gets(struct stores *stores)
{
	struct get *get, *next;
	struct gets begun;

	TAILQ_INIT(&begun);
	pthread_mutex_lock(&stores->lock);
	stores->woken = false;
	TAILQ_CONCAT(&begun, &stores->begun, link);
	bool ending = stores->ending;

	pthread_mutex_unlock(&stores->lock);
	for (get = TAILQ_FIRST(&begun); get; get = next) {
		next = TAILQ_NEXT(get, link);
		TAILQ_INSERT_TAIL(&stores->gets, get, link);
		if (stores->curl->multi_add_handle(stores->multi, get->easy) != CURLM_OK)
			end_get(stores, get, CURLE_OUT_OF_MEMORY);
	}
	return !ending;
}

static bool is_left(struct stores *stores, const struct get *get)
{
	pthread_mutex_lock(&stores->lock);
	bool left = !get->reading;

	pthread_mutex_unlock(&stores->lock);
	return left;
}

/* Ends GETs that are too slow, or that nobody waits for. */
static void check_gets(struct stores *stores, int64_t now_ms)
{
	struct get *get, *next;

	for (get = TAILQ_FIRST(&stores->gets); get; get = next) {
		next = TAILQ_NEXT(get, link);
		if (get_too_slow(get, now_ms)) {
			get->timed_out = true;
			end_get(stores, get, CURLE_OPERATION_TIMEDOUT);
		} else if (is_left(stores, get) && get_may_end(get)) {
			end_get(stores, get, CURLE_ABORTED_BY_CALLBACK);
		}
	}
}

/* ---- the thread ---- */

static int64_t sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void wait_until(struct stores *stores, int64_t due_ms)
{
	struct epoll_event events[EVENTS];
	int64_t left = due_ms == INT64_MAX ? -1 : due_ms - stores_now_ms();
	int wait = left < 0 ? (due_ms == INT64_MAX ? -1 : 0) : (int)sooner(left, 60000);
	int n = epoll_wait(stores->epoll_fd, events, EVENTS, wait);
	eventfd_t unused;

	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == stores->wake_fd)
			eventfd_read(stores->wake_fd, &unused);
		else
			act(stores, events[i].data.fd, events[i].events);
	}
	if (stores_now_ms() >= stores->curl_due_ms) {
		stores->curl_due_ms = INT64_MAX;
		act(stores, CURL_SOCKET_TIMEOUT, 0);
	}
}

static void *fetch_thread(void *argument)
{
	struct stores *stores = argument;
	int64_t check_ms = 0;

	prctl(PR_SET_NAME, "tokend-fetch");
	while (begin_gets(stores)) {
		int64_t now_ms = stores_now_ms();

		if (now_ms >= check_ms) {
			check_gets(stores, now_ms);
			check_ms = now_ms + CHECK_MS;
		}
		wait_until(stores, sooner(TAILQ_EMPTY(&stores->gets) ? INT64_MAX : check_ms,
					   stores->curl_due_ms));
		end_gets(stores);
	}
	return NULL;
}

void fetch_wake(struct stores *stores)
{
	if (stores->woken || !stores->running)
		return;
	stores->woken = true;
	eventfd_write(stores->wake_fd, 1);
}

static bool start_thread(struct stores *stores, struct fault *fault)
{
	pthread_attr_t attr;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int error = pthread_create(&stores->thread, &attr, fetch_thread, stores);

	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	stores->running = !error;
	return !error || fault_errno(fault, error, "stores", "cannot start the fetch thread: %s",
				 strerror(error));
}

bool fetch_open(struct stores *stores, struct fault *fault)
{
	struct epoll_event event = {.events = EPOLLIN};

	stores->curl = curl_load(fault);
	if (!stores->curl)
		return false;
	stores->curl_due_ms = INT64_MAX;
	stores->multi = stores->curl->multi_init();
	if (!stores->multi)
		return fault_memory(fault);
	stores->curl->multi_setopt(stores->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	stores->curl->multi_setopt(stores->multi, CURLMOPT_SOCKETDATA, stores);
	stores->curl->multi_setopt(stores->multi, CURLMOPT_MAXCONNECTS, 1024L);
	stores->curl->multi_setopt(stores->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	stores->curl->multi_setopt(stores->multi, CURLMOPT_TIMERDATA, stores);
	stores->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	stores->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	event.data.fd = stores->wake_fd;
	if (stores->epoll_fd >= 0 && stores->wake_fd >= 0 &&
		epoll_ctl(stores->epoll_fd, EPOLL_CTL_ADD, stores->wake_fd, &event) == 0 &&
		start_thread(stores, fault))
		return true;
	if (stores->epoll_fd < 0 || stores->wake_fd < 0)
		fault_errno(fault, errno, "stores", "cannot watch connections to stores: %s",
			strerror(errno));
	fetch_close(stores);
	return false;
}

/* All readings have ended. False: a GET looks up a name, so it cannot be ended, and leaks with
 * libcurl. */
static bool drop_gets(struct stores *stores)
{
	struct get *get;
	bool ended = true;

	while ((get = TAILQ_FIRST(&stores->begun))) {
		TAILQ_REMOVE(&stores->begun, get, link);
		get_release(get);
	}
	while ((get = TAILQ_FIRST(&stores->gets))) {
		TAILQ_REMOVE(&stores->gets, get, link);
		if (get_may_end(get)) {
			stores->curl->multi_remove_handle(stores->multi, get->easy);
			get_release(get);
		} else {
			ended = false;
		}
	}
	return ended;
}

void fetch_close(struct stores *stores)
{
	if (stores->running) {
		pthread_mutex_lock(&stores->lock);
		stores->ending = true;
		stores->woken = false;
		fetch_wake(stores);
		pthread_mutex_unlock(&stores->lock);
		pthread_join(stores->thread, NULL);
		stores->running = false;
	}
	if (stores->multi) {
		bool ended = drop_gets(stores);

		for (struct store_bucket *b = stores->buckets; b; b = b->next)
			get_free_spares(b);
		if (ended)
			stores->curl->multi_cleanup(stores->multi);
		stores->multi = NULL;
	}
	if (stores->epoll_fd >= 0)
		close(stores->epoll_fd);
	if (stores->wake_fd >= 0)
		close(stores->wake_fd);
	stores->epoll_fd = stores->wake_fd = -1;
}
