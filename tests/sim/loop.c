/* libuv, as far as the daemon uses it: one loop a process, over the simulated files and clocks. */
#include "tests/sim/world.h"

#include <uv.h>

enum kind { POLL, TIMER, ASYNC, SIGNAL };

struct hook {
	struct hook *next;
	uv_handle_t *handle;
	enum kind kind;
	bool active, closing, pending, unreferenced;
	int fd, events, number;
	int64_t due;
	uint64_t repeat;
	union {
		uv_poll_cb poll;
		uv_timer_cb timer;
		uv_async_cb async;
		uv_signal_cb signal;
	} call;
};

struct work {
	struct work *next;
	struct loop *loop;
	uv_work_t *of;
	uv_work_cb run;
	uv_after_work_cb after;
};

struct loop {
	struct loop *next;
	struct proc *proc;
	uv_loop_t *of;
	int64_t now;
	struct hook *hooks;
	struct work *done, **done_last;
	unsigned working;
};

static struct loop *loop_of(const uv_loop_t *of)
{
	return of->internal_fields;
}

static struct hook *hook_of(const void *handle)
{
	return ((const uv_handle_t *)handle)->u.reserved[3];
}

int uv_loop_init(uv_loop_t *of)
{
	struct loop *l = __real_calloc(1, sizeof(*l));

	CHECK(l);
	memset(of, 0, sizeof(*of));
	*l = (struct loop){
		.next = fiber_proc()->loops, .proc = fiber_proc(), .of = of, .now = fiber_now};
	l->done_last = &l->done;
	l->proc->loops = l;
	of->internal_fields = l;
	return 0;
}

static void loop_free(struct loop *l)
{
	while (l->hooks) {
		struct hook *h = l->hooks;

		l->hooks = h->next;
		__real_free(h);
	}
	while (l->done) {
		struct work *w = l->done;

		l->done = w->next;
		__real_free(w);
	}
	__real_free(l);
}

int uv_loop_close(uv_loop_t *of)
{
	struct loop *l = loop_of(of), **at = &l->proc->loops;

	CHECK(!l->hooks && l->working == 0 && !l->done);
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	loop_free(l);
	return 0;
}

/* Of a process that died. Work in its pool ends with its fibers. */
void loops_free(struct proc *p)
{
	while (p->loops) {
		struct loop *l = p->loops;

		p->loops = l->next;
		loop_free(l);
	}
}

static struct hook *hook_new(uv_loop_t *of, void *handle, enum kind kind)
{
	struct hook *h = __real_calloc(1, sizeof(*h)), **end = &loop_of(of)->hooks;
	uv_handle_t *u = handle;

	CHECK(h);
	while (*end)
		end = &(*end)->next;
	*h = (struct hook){.handle = u, .kind = kind};
	*end = h;
	u->loop = of;
	u->u.reserved[3] = h;
	return h;
}

uint64_t uv_now(const uv_loop_t *of)
{
	return (uint64_t)(loop_of(of)->now / MILLI) + 1000;
}

int uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd)
{
	hook_new(loop, poll, POLL)->fd = fd;
	return 0;
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb call)
{
	struct hook *h = hook_of(poll);

	CHECK(!h->closing);
	h->active = true;
	h->events = events;
	h->call.poll = call;
	return 0;
}

int uv_poll_stop(uv_poll_t *poll)
{
	hook_of(poll)->active = false;
	return 0;
}

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
	hook_new(loop, timer, TIMER);
	return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t ms, uint64_t repeat)
{
	struct hook *h = hook_of(timer);

	h->active = true;
	h->due = loop_of(timer->loop)->now + (int64_t)ms * MILLI;
	h->repeat = repeat;
	h->call.timer = call;
	return 0;
}

int uv_timer_stop(uv_timer_t *timer)
{
	hook_of(timer)->active = false;
	return 0;
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb call)
{
	struct hook *h = hook_new(loop, async, ASYNC);

	h->active = true;
	h->call.async = call;
	return 0;
}

int uv_async_send(uv_async_t *async)
{
	struct hook *h = hook_of(async);

	CHECK(h && !h->closing); /* a closed handle may be gone */
	h->pending = true;
	proc_poke(loop_of(async->loop)->proc);
	return 0;
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *signal)
{
	hook_new(loop, signal, SIGNAL);
	return 0;
}

int uv_signal_start(uv_signal_t *signal, uv_signal_cb call, int number)
{
	struct hook *h = hook_of(signal);

	h->active = true;
	h->number = number;
	h->call.signal = call;
	return 0;
}

void loop_signal(struct proc *p, int number)
{
	for (struct loop *l = p->loops; l; l = l->next)
		for (struct hook *h = l->hooks; h; h = h->next)
			h->pending |= h->kind == SIGNAL && h->number == number;
	proc_poke(p);
}

void uv_close(uv_handle_t *handle, uv_close_cb call)
{
	struct hook *h = hook_of(handle);

	CHECK(!h->closing);
	h->active = false;
	h->closing = true;
	handle->close_cb = call;
	proc_poke(loop_of(handle->loop)->proc);
}

void uv_unref(uv_handle_t *handle)
{
	hook_of(handle)->unreferenced = true;
}

int uv_is_closing(const uv_handle_t *handle)
{
	const struct hook *h = hook_of(handle);

	return !h || h->closing;
}

int uv_is_active(const uv_handle_t *handle)
{
	return hook_of(handle)->active;
}

void uv_walk(uv_loop_t *loop, uv_walk_cb call, void *argument)
{
	for (struct hook *h = loop_of(loop)->hooks, *next; h; h = next) {
		next = h->next;
		call(h->handle, argument);
	}
}

/* ---- the pool ---- */

static void work_main(void *argument)
{
	struct work *w = argument;
	struct loop *l = w->loop;

	w->run(w->of);
	*l->done_last = w;
	l->done_last = &w->next;
	proc_poke(l->proc);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *of, uv_work_cb run, uv_after_work_cb after)
{
	struct work *w = __real_calloc(1, sizeof(*w));

	CHECK(w);
	*w = (struct work){NULL, loop_of(loop), of, run, after};
	w->loop->working++;
	loop->active_reqs.count++;
	fiber_new(fiber_proc(), work_main, w);
	return 0;
}

static bool finish_work(struct loop *l)
{
	struct work *w = l->done;

	if (!w)
		return false;
	l->done = w->next;
	if (!l->done)
		l->done_last = &l->done;
	l->working--;
	l->of->active_reqs.count--;

	uv_work_t *of = w->of;
	uv_after_work_cb after = w->after;

	__real_free(w);
	if (after)
		after(of, 0);
	return true;
}

/* ---- a turn ---- */

static bool is_due(struct loop *l, const struct hook *h)
{
	if (!h->active)
		return false;
	switch (h->kind) {
	case POLL:
		return file_readable(fd_get(h->fd));
	case TIMER:
		return h->due <= l->now;
	default:
		return h->pending;
	}
}

static void call(struct hook *h)
{
	switch (h->kind) {
	case POLL:
		h->call.poll((uv_poll_t *)h->handle, 0, UV_READABLE);
		break;
	case TIMER:
		h->active = h->repeat > 0;
		h->due += (int64_t)h->repeat * MILLI;
		h->call.timer((uv_timer_t *)h->handle);
		break;
	case ASYNC:
		h->pending = false;
		h->call.async((uv_async_t *)h->handle);
		break;
	case SIGNAL:
		h->pending = false;
		h->call.signal((uv_signal_t *)h->handle, h->number);
		break;
	}
}

/* Ends the handles that were closing when the turn began. */
static bool end_closing(struct loop *l)
{
	bool any = false;

	for (struct hook **at = &l->hooks; *at;) {
		struct hook *h = *at;

		if (!h->closing) {
			at = &h->next;
			continue;
		}
		uv_handle_t *handle = h->handle;

		*at = h->next;
		__real_free(h);
		any = true;
		if (handle->close_cb)
			handle->close_cb(handle);
		at = &l->hooks;
	}
	return any;
}

static int64_t next_due(const struct loop *l)
{
	int64_t due = NEVER;

	for (const struct hook *h = l->hooks; h; h = h->next)
		if (h->kind == TIMER && h->active && h->due < due)
			due = h->due;
	return due;
}

/* Handlers may end and begin handles: those present now are found by their number. */
static bool turn(struct loop *l)
{
	uv_handle_t *due[FDS * 2];
	struct hook *hook[FDS * 2];
	unsigned n = 0;
	bool any = false;

	l->now = fiber_now;
	for (struct hook *h = l->hooks; h; h = h->next)
		if (is_due(l, h)) {
			CHECK(n < FDS * 2);
			hook[n] = h;
			due[n++] = h->handle;
		}
	for (unsigned i = n; i > 1; i--) { /* in any order */
		unsigned j = (unsigned)draw(i);
		struct hook *h = hook[i - 1];
		uv_handle_t *u = due[i - 1];

		hook[i - 1] = hook[j], due[i - 1] = due[j];
		hook[j] = h, due[j] = u;
	}
	for (unsigned i = 0; i < n; i++) {
		struct hook *h = l->hooks;

		while (h && h != hook[i])
			h = h->next;
		if (h && h->handle == due[i] && is_due(l, h)) {
			call(h);
			any = true;
		}
	}
	while (finish_work(l))
		any = true;
	return end_closing(l) || any;
}

int uv_run(uv_loop_t *of, uv_run_mode mode)
{
	struct loop *l = loop_of(of);

	for (;;) {
		bool any = turn(l);
		bool alive = l->working > 0;

		for (const struct hook *h = l->hooks; h; h = h->next)
			alive |= (h->active && !h->unreferenced) || h->closing;
		if (!alive || mode == UV_RUN_NOWAIT || (any && mode == UV_RUN_ONCE))
			return alive;
		if (!any)
			fiber_block(l->proc, next_due(l));
		else
			fiber_yield();
	}
}

int uv_getrusage(uv_rusage_t *usage)
{
	memset(usage, 0, sizeof(*usage));
	return 0;
}

uv_pid_t uv_os_getpid(void)
{
	return fiber_proc()->pid;
}
