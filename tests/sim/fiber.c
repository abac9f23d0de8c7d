#include "tests/sim/fiber.h"
#include "tests/sim/world.h"

#include <errno.h>
#include <sys/mman.h>

#ifdef ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { FIBERS = 1024, STACK = 1 << 20, TIMERS = 1 << 16 };

enum state { FREE, READY, BLOCKED, RUNNING };

struct fiber {
	void *sp, *stack, *fake;
	struct proc *proc;
	void (*main)(void *);
	void *argument;
	enum state state;
	const void *on;
	bool timed_out;
	uint64_t epoch; /* of its timer; another one is void */
	int error;	/* errno */
};

struct timer {
	int64_t at;
	uint64_t order, epoch;
	struct fiber *fiber; /* NULL: fire */
	void (*fire)(void *);
	void *argument;
};

int64_t fiber_now;
uint64_t fiber_switches, fiber_trace, fiber_interrupts;
struct fiber *fiber_current;
static struct fiber fibers[FIBERS];
static unsigned used, ready_count;
static uint16_t ready[FIBERS];
static struct timer timers[TIMERS];
static unsigned timer_count;
static uint64_t timer_order;
static void *main_sp;

/* ---- switching ---- */

void fiber_switch(void **from, void *to);
void fiber_begin(void);

#if defined(__x86_64__)
__asm__(".text\n.globl fiber_switch\n.type fiber_switch,@function\nfiber_switch:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
	".size fiber_switch,.-fiber_switch\n");
enum { SAVED = 6, RETURN = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.globl fiber_switch\n.type fiber_switch,%function\nfiber_switch:\n"
	"sub sp,sp,#176\n"
	"stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
	"stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
	"stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
	"mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
	"ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
	"ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
	"ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
	"add sp,sp,#176\nret\n"
	".size fiber_switch,.-fiber_switch\n");
enum { SAVED = 22, RETURN = 11 };
#else
#error "write fiber_switch() for this processor"
#endif

/* The first frame of a fiber; fiber_switch() returns into it. */
void fiber_begin(void)
{
	struct fiber *f = fiber_current;

#ifdef ASAN
	__sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
	f->main(f->argument);
	fiber_exit();
}

struct proc *fiber_proc(void)
{
	return fiber_current ? fiber_current->proc : NULL;
}

static void make_ready(struct fiber *f)
{
	f->state = READY;
	f->epoch++;
	ready[ready_count++] = (uint16_t)(f - fibers);
}

struct fiber *fiber_new(struct proc *proc, void (*main)(void *), void *argument)
{
	struct fiber *f = fibers;

	while (f < fibers + used && f->state != FREE)
		f++;
	if (f == fibers + used) {
		CHECK(used < FIBERS);
		used++;
		f->stack = __real_mmap(NULL, STACK, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(f->stack != MAP_FAILED);
	}
#ifdef ASAN
	/* The last fiber on it may have ended within a scope. */
	__asan_unpoison_memory_region(f->stack, STACK);
#endif
	f->proc = proc;
	f->main = main;
	f->argument = argument;
	f->fake = NULL;
	f->error = 0;

	uintptr_t top = (uintptr_t)f->stack + STACK - 64;
	/* As after a call: on x86-64 the stack is 8 below a multiple of 16 then. */
	void **frame = (void **)(top & ~(uintptr_t)15) - SAVED - 2;

	for (unsigned i = 0; i < SAVED + 1; i++)
		frame[i] = NULL;
	frame[RETURN] = (void *)fiber_begin;
	f->sp = frame;
	make_ready(f);
	return f;
}

/* Back to the scheduler. @ends: the fiber never returns. */
static void leave(struct fiber *f, bool ends)
{
	f->error = errno;
#ifdef ASAN
	__sanitizer_start_switch_fiber(ends ? NULL : &f->fake, world_main_stack, world_main_bytes);
#else
	(void)ends;
#endif
	fiber_switch(&f->sp, main_sp);
#ifdef ASAN
	__sanitizer_finish_switch_fiber(f->fake, NULL, NULL);
#endif
	errno = f->error;
}

/* ---- interruptions: compilers call this at every branch of the files that share rings ---- */

static unsigned fuse; /* branches to the next interruption; 0: none in this slice */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	if (fuse > 0 && --fuse == 0 && fiber_current) {
		fiber_interrupts++;
		fiber_yield();
	}
}

static void enter(struct fiber *f)
{
	fuse = chance(3) ? 1 + (unsigned)draw(300) : 0;
	f->state = RUNNING;
	fiber_current = f;
	fiber_switches++;
#ifdef ASAN
	void *fake;

	__sanitizer_start_switch_fiber(&fake, f->stack, STACK);
#endif
	fiber_switch(&main_sp, f->sp);
#ifdef ASAN
	__sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
	fiber_current = NULL;
}

static void bury(struct fiber *f)
{
	f->state = FREE;
	f->epoch++;
	f->proc = NULL;
}

void fiber_exit(void)
{
	struct fiber *f = fiber_current;

	f->state = FREE;
	f->epoch++;
	leave(f, true);
	abort();
}

void fiber_kill(struct proc *proc)
{
	bool self = false;

	for (unsigned i = 0; i < ready_count;)
		if (fibers[ready[i]].proc == proc)
			ready[i] = ready[--ready_count];
		else
			i++;
	for (struct fiber *f = fibers; f < fibers + used; f++)
		if (f->state != FREE && f->proc == proc) {
			if (f == fiber_current)
				self = true;
			else
				bury(f);
		}
	if (self)
		fiber_exit();
}

unsigned fiber_count(const struct proc *proc)
{
	unsigned n = 0;

	for (struct fiber *f = fibers; f < fibers + used; f++)
		n += f->state != FREE && f->proc == proc;
	return n;
}

/* ---- timers: a heap ---- */

static bool earlier(const struct timer *a, const struct timer *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void timer_add(struct timer t)
{
	unsigned i = timer_count++;

	CHECK(timer_count < TIMERS);
	t.order = timer_order++;
	for (; i > 0 && earlier(&t, &timers[(i - 1) / 2]); i = (i - 1) / 2)
		timers[i] = timers[(i - 1) / 2];
	timers[i] = t;
}

static struct timer timer_take(void)
{
	struct timer first = timers[0], last = timers[--timer_count];
	unsigned i = 0, child;

	for (; (child = 2 * i + 1) < timer_count; i = child) {
		if (child + 1 < timer_count && earlier(&timers[child + 1], &timers[child]))
			child++;
		if (!earlier(&timers[child], &last))
			break;
		timers[i] = timers[child];
	}
	timers[i] = last;
	return first;
}

/* Removes timers of fibers that did not need them. */
static void timers_clean(void)
{
	unsigned n = 0, all = timer_count;
	static struct timer kept[TIMERS];

	for (unsigned i = 0; i < all; i++)
		if (!timers[i].fiber || timers[i].fiber->epoch == timers[i].epoch)
			kept[n++] = timers[i];
	timer_count = 0;
	for (unsigned i = 0; i < n; i++) {
		unsigned at = timer_count++;

		for (; at > 0 && earlier(&kept[i], &timers[(at - 1) / 2]); at = (at - 1) / 2)
			timers[at] = timers[(at - 1) / 2];
		timers[at] = kept[i];
	}
}

void timer_at(int64_t at, void (*fire)(void *), void *argument)
{
	timer_add((struct timer){.at = at, .fire = fire, .argument = argument});
}

/* ---- waiting ---- */

void fiber_yield(void)
{
	struct fiber *f = fiber_current;

	make_ready(f);
	leave(f, false);
}

bool fiber_block(const void *on, int64_t until)
{
	struct fiber *f = fiber_current;

	if (until <= fiber_now)
		return false;
	f->on = on;
	f->timed_out = false;
	f->state = BLOCKED;
	if (until != NEVER) {
		if (timer_count > TIMERS / 2)
			timers_clean();
		timer_add((struct timer){.at = until, .fiber = f, .epoch = f->epoch});
	}
	leave(f, false);
	return !f->timed_out;
}

void fiber_wake(const void *on)
{
	for (struct fiber *f = fibers; f < fibers + used; f++)
		if (f->state == BLOCKED && f->on == on)
			make_ready(f);
}

void fiber_sleep(int64_t ns)
{
	int64_t until = fiber_now + ns;

	while (fiber_block(NULL, until))
		;
}

static void fire(struct timer t)
{
	if (!t.fiber) {
		t.fire(t.argument);
	} else if (t.fiber->epoch == t.epoch) {
		t.fiber->timed_out = true;
		make_ready(t.fiber);
	}
}

void fiber_run(int64_t until, bool (*stop)(void))
{
	while (fiber_now < until && !stop()) {
		while (timer_count > 0 && timers[0].at <= fiber_now)
			fire(timer_take());
		if (ready_count > 0) {
			unsigned i = (unsigned)draw(ready_count);
			struct fiber *f = &fibers[ready[i]];

			fiber_trace = fiber_trace * 31 + ready[i] + (uint64_t)fiber_now;
			ready[i] = ready[--ready_count];
			fiber_now += 100 + (int64_t)draw(400);
			enter(f);
		} else if (timer_count > 0 && timers[0].at < until) {
			fiber_now = timers[0].at > fiber_now ? timers[0].at : fiber_now;
		} else {
			fiber_now = until;
		}
	}
}
