/*
 * The fetch thread. It waits in epoll for libcurl's sockets, for its wake-up (new wants, new
 * credentials) and for the time of repetitions. Nothing in it blocks.
 */
#include "daemon/store/get.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>

enum { EVENTS = 64, TICK_MS = 1000, STARTS = 64, STACK_BYTES = 512 * 1024 };

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
		get_end(get, code);
	}
}

/* ---- the beginning of GETs ---- */

/* Moves ranges whose time has come to the front of their lines. Returns when the next one comes. */
static int64_t wake_resting(struct stores *stores, int64_t now_ms)
{
	struct range *range, *next;
	int64_t due_ms = INT64_MAX;
	bool renewed = atomic_exchange(&stores->new_credentials, false);

	for (range = TAILQ_FIRST(&stores->resting); range; range = next) {
		next = TAILQ_NEXT(range, link);
		if (range->due_ms > now_ms && !(renewed && range->renews)) {
			due_ms = range->due_ms < due_ms ? range->due_ms : due_ms;
			continue;
		}
		TAILQ_REMOVE(&stores->resting, range, link);
		range_wait(range, range->line->session, true);
	}
	return due_ms;
}

/* Takes the next range of a bucket: sessions take turns. NULL: none may begin. */
static struct range *take_next(struct store_bucket *bucket)
{
	struct line *line = TAILQ_FIRST(&bucket->turns);
	struct range *range;

	if (!line || bucket->status.in_flight >= bucket->limit.now)
		return NULL;
	range = TAILQ_FIRST(&line->ranges);
	if (!range_reserve(range)) {
		bucket->starved = true;
		return NULL;
	}
	TAILQ_REMOVE(&line->ranges, range, link);
	TAILQ_REMOVE(&bucket->turns, line, turn);
	if (!TAILQ_EMPTY(&line->ranges))
		TAILQ_INSERT_TAIL(&bucket->turns, line, turn);
	range->state = RANGE_FLIES;
	bucket->status.in_flight++;
	bucket->status.requests++;
	return range;
}

/* Ends all wants of a bucket that cannot have credentials. */
static bool refuse(struct store_bucket *bucket, const struct fault *fault)
{
	struct line *line;
	bool news = false;

	while ((line = TAILQ_FIRST(&bucket->turns))) {
		struct range *range = TAILQ_FIRST(&line->ranges);
		struct want *want;

		range->fault = malloc(sizeof(*fault));
		if (range->fault)
			*range->fault = *fault;
		while ((want = TAILQ_FIRST(&range->wants)))
			news |= want_end(bucket->stores, want,
				range->fault ? range->fault : &want_no_memory);
		range_abandon(range);
	}
	return news;
}

/* Whether the bucket's GETs can be signed. */
static bool has_credentials(struct store_bucket *bucket, bool *news)
{
	struct stores *stores = bucket->stores;
	struct fault fault = {.text = "credentials"};
	enum wallet_state state = wallet_get(bucket->wallet, bucket->credentials, &fault);

	bucket->waits_for[0] = 0;
	if (state == WALLET_READY)
		return true;
	if (state == WALLET_LATER) {
		snprintf(bucket->waits_for, sizeof(bucket->waits_for), "%.159s", fault.text);
		struct range *first = TAILQ_FIRST(&TAILQ_FIRST(&bucket->turns)->ranges);
		int64_t patience = stores->options.patience_ms;

		if (patience == 0 || stores_now_ms() - first->since_ms <= patience)
			return false;
		fault_errno(&fault, EREMOTEIO, "", "%s: waited %d s for %s", bucket->place.name,
			(int)(patience / 1000), bucket->waits_for);
	}
	*news |= refuse(bucket, &fault);
	return false;
}

static unsigned choose(struct stores *stores, struct range *starts[STARTS], bool *news)
{
	unsigned n = 0;

	for (struct store_bucket *b = stores->buckets; b; b = b->next) {
		struct range *range;

		if (TAILQ_EMPTY(&b->turns) || !has_credentials(b, news))
			continue;
		while (n < STARTS && (range = take_next(b)))
			starts[n++] = range;
	}
	return n;
}

static bool apply_outcomes(struct stores *stores)
{
	struct get *get;
	bool news = false;

	while ((get = TAILQ_FIRST(&stores->ended))) {
		TAILQ_REMOVE(&stores->ended, get, link);
		struct range *range = get->range;

		get_release(get);
		news |= outcome_apply(range, &get->outcome);
	}
	return news;
}

static void begin(struct range *range)
{
	struct stores *stores = range->bucket->stores;
	struct outcome outcome = {
		.verdict = {.kind = VERDICT_HEALS, .code = FAULT_IO, .remedy = ""}};
	struct fault fault;

	if (get_begin(range, &fault))
		return;
	snprintf(outcome.verdict.reason, sizeof(outcome.verdict.reason), "%.200s", fault.text);
	pthread_mutex_lock(&stores->lock);
	bool news = outcome_apply(range, &outcome);

	pthread_mutex_unlock(&stores->lock);
	if (news)
		stores_tell(stores);
}

/* One turn with the lock: GETs have ended, wants have arrived, ranges are due. Returns when the
 * next turn is due at the latest. */
static int64_t turn(struct stores *stores, int64_t now_ms, struct range *starts[STARTS],
	unsigned *count, bool *ending)
{
	char line[sizeof(stores->line)];
	bool news, waits = false;

	pthread_mutex_lock(&stores->lock);
	stores->woken = false;
	*ending = stores->ending;
	news = apply_outcomes(stores);
	news |= stores_arrive(stores);
	int64_t due_ms = wake_resting(stores, now_ms);

	*count = choose(stores, starts, &news);
	for (struct store_bucket *b = stores->buckets; b; b = b->next)
		waits |= !TAILQ_EMPTY(&b->turns);
	memcpy(line, stores->line, sizeof(line));
	stores->line[0] = 0;
	pthread_mutex_unlock(&stores->lock);
	if (news)
		stores_tell(stores);
	if (line[0] && stores->options.log)
		stores->options.log(stores->options.log_context, line);
	if (waits && due_ms > now_ms + TICK_MS)
		due_ms = now_ms + TICK_MS; /* for memory or credentials */
	return due_ms;
}

/* Returns when to call again. False: the thread ends. */
static bool start(struct stores *stores, int64_t now_ms, int64_t *due_ms)
{
	struct range *starts[STARTS];
	unsigned count;
	bool ending;

	do {
		*due_ms = turn(stores, now_ms, starts, &count, &ending);
		for (unsigned i = 0; i < count; i++)
			begin(starts[i]);
	} while (count == STARTS);
	return !ending;
}

/* ---- the thread ---- */

static void wait_until(struct stores *stores, int64_t due_ms)
{
	struct epoll_event events[EVENTS];
	int64_t left = due_ms == INT64_MAX ? -1 : due_ms - stores_now_ms();
	int wait = left < 0 ? (due_ms == INT64_MAX ? -1 : 0) : left > 60000 ? 60000 : (int)left;
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

static int64_t sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void *fetch_thread(void *argument)
{
	struct stores *stores = argument;
	int64_t check_ms = 0, due_ms = 0;

	prctl(PR_SET_NAME, "tokend-fetch");
	for (;;) {
		int64_t now_ms = stores_now_ms();

		if (now_ms >= check_ms)
			check_ms = now_ms + gets_check(stores, now_ms);
		if (!start(stores, now_ms, &due_ms))
			return NULL;
		if (!TAILQ_EMPTY(&stores->gets))
			due_ms = sooner(due_ms, check_ms);
		wait_until(stores, sooner(due_ms, stores->curl_due_ms));
		end_gets(stores);
	}
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
	if (error)
		return fault_errno(fault, error, "stores", "cannot start the fetch thread: %s",
			strerror(error));
	stores->running = true;
	return true;
}

bool fetch_open(struct stores *stores, struct fault *fault)
{
	struct epoll_event event = {.events = EPOLLIN};

	stores->curl = curl_load(fault);
	if (!stores->curl)
		return false;
	TAILQ_INIT(&stores->gets);
	TAILQ_INIT(&stores->ended);
	stores->curl_due_ms = INT64_MAX;
	stores->random = (uint32_t)stores_now_ms() ^ ((uint32_t)getpid() << 16) ^ 0x9e3779b9u;
	stores->random |= stores->random == 0;
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

void fetch_end(struct stores *stores)
{
	if (!stores->running)
		return;
	pthread_mutex_lock(&stores->lock);
	stores->ending = true;
	stores->woken = false;
	stores_wake(stores);
	pthread_mutex_unlock(&stores->lock);
	pthread_join(stores->thread, NULL);
	stores->running = false;
}

void fetch_close(struct stores *stores)
{
	if (stores->multi) {
		gets_close(stores);
		for (struct store_bucket *b = stores->buckets; b; b = b->next)
			get_free_spares(b);
		if (!stores->leaks)
			stores->curl->multi_cleanup(stores->multi);
		stores->multi = NULL;
	}
	if (stores->epoll_fd >= 0)
		close(stores->epoll_fd);
	if (stores->wake_fd >= 0)
		close(stores->wake_fd);
	stores->epoll_fd = stores->wake_fd = -1;
}
