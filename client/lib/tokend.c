/*
 * The beginning and end of a handle, what it says of itself, and what it asks of the daemon on a
 * trainer's behalf. The calls of every step are in next.c.
 */
#include "client/lib/tokend.h"

#include "client/lib/handle.h"
#include "client/lib/place.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	DEADLINE_MS = 300000,
	TAG_BYTES = 2 * LIMIT_NAME_BYTES + 8, /* RUN/TAG.former, the longest that a daemon offers */
};

_Static_assert(TOKEND_PADDING == RING_PADDING && TOKEND_ENDLESS == RING_ENDLESS, "told to users");
_Static_assert(TOKEND_CURSOR_BYTES == LIMIT_CURSOR_BYTES, "told to users");

/* ---- failing ---- */

int handle_fail(struct tokend *t, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(t->why, sizeof(t->why), format, args);
	va_end(args);
	return code;
}

/* Names are a user's, and the line is to be one line. */
static int fail_name(struct tokend *t, const char *what, const char *name)
{
	char shown[LIMIT_NAME_BYTES + 1];
	size_t n = 0;

	for (; name[n] && n < LIMIT_NAME_BYTES; n++)
		shown[n] = (unsigned char)name[n] < ' ' || name[n] == 127 ? '?' : name[n];
	while (name[n] && n > 0 &&
		((unsigned char)name[n] & 0xc0) == 0x80) /* not in the middle of one */
		n--;
	shown[n] = 0;
	return handle_fail(t, TOKEND_EARGUMENT,
		"%s: '%s%s', must be a name of 1 to %d bytes, without '/', control characters or a "
		"leading "
		"'.'",
		what, shown, name[n] ? "…" : "", LIMIT_NAME_BYTES);
}

int handle_latch(struct tokend *t, int code)
{
	t->failed = code;
	memcpy(t->failed_why, t->why, sizeof(t->why));
	return code;
}

int handle_failed(struct tokend *t)
{
	memcpy(t->why, t->failed_why, sizeof(t->why));
	return t->failed;
}

int handle_check(struct tokend *t)
{
	return handle_forked(t) ? TOKEND_EFORKED : 0;
}

const char *tokend_why(const struct tokend *t)
{
	return handle_forked(t) ? "fork: this handle belongs to the process that attached: attach "
				  "anew in the child, with another peer or rank; in a DataLoader's "
				  "worker: num_workers=0"
				: t->why;
}

const char *tokend_version(void)
{
	return TOKEND_VERSION;
}

/* ---- attach and detach ---- */

static int check_options(struct tokend *t, const struct tokend_options *o)
{
	int starts = (o->cursor != NULL) + (o->tag != NULL) + (o->start_at_position != 0);

	if (!o->stream)
		return handle_fail(t, TOKEND_EARGUMENT,
			"stream: missing: name a stream of the daemon's config");
	if (!wire_name_ok(o->stream))
		return fail_name(t, "stream", o->stream);
	if (o->run && !wire_name_ok(o->run))
		return fail_name(t, "run", o->run);
	if (o->strict && !o->run)
		return handle_fail(t, TOKEND_EARGUMENT,
			"strict: needs a run: jobs that name none are all of run default");
	if (starts > 1)
		return handle_fail(t, TOKEND_EARGUMENT,
			"start: give one of cursor, tag and position, not %d of them", starts);
	if (o->cursor && (o->cursor_bytes == 0 || o->cursor_bytes > LIMIT_CURSOR_BYTES))
		return handle_fail(t, TOKEND_EARGUMENT, "cursor: %zu bytes, a cursor has 1 to %d",
			o->cursor_bytes, LIMIT_CURSOR_BYTES);
	if (o->tag && strlen(o->tag) > TAG_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT,
			"tag: %zu bytes, TAG or RUN/TAG has at most %d", strlen(o->tag), TAG_BYTES);
	if (o->slots > LIMIT_SLOTS)
		return handle_fail(
			t, TOKEND_EARGUMENT, "slots: %u, at most %d", o->slots, LIMIT_SLOTS);
	return 0;
}

/* What a caller compiled against another version of the struct gave: members it does not know are
 * 0. */
static bool read_options(struct tokend_options *o, const struct tokend_options *given)
{
	const char *bytes = (const char *)given;

	memset(o, 0, sizeof(*o));
	if (given->size <
		offsetof(struct tokend_options, start_at_position) + sizeof(o->start_at_position))
		return false;
	memcpy(o, given, given->size < sizeof(*o) ? given->size : sizeof(*o));
	for (size_t i = sizeof(*o); i < given->size; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

static bool make_fork_page(struct tokend *t)
{
	uint64_t *page =
		mmap(NULL, RING_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return false;
	t->alive = page;
	if (madvise(page, RING_PAGE, MADV_WIPEONFORK) != 0)
		return false;
	*page = 1;
	return true;
}

static bool make_buffers(struct tokend *t, const struct tokend_options *o)
{
	char path[WIRE_SOCKET_BYTES];

	t->socket = strdup(o->socket ? o->socket : place_socket(path));
	t->stream = strdup(o->stream);
	t->run = strdup(o->run ? o->run : "default");
	t->bytes = malloc(LIMIT_CURSOR_BYTES);
	t->saved = malloc(LIMIT_CURSOR_BYTES);
	t->out = malloc(LIMIT_PACKET_BYTES);
	t->packet = malloc(sizeof(*t->packet));
	t->leg = malloc(sizeof(*t->leg));
	if (t->packet)
		t->packet->fds = 0;
	return t->socket && t->stream && t->run && t->bytes && t->saved && t->out && t->packet &&
	       t->leg && make_fork_page(t);
}

static int attach(struct tokend *t, const struct tokend_options *o)
{
	const struct target target = {
		.cursor = o->cursor,
		.cursor_bytes = o->cursor_bytes,
		.tag = o->tag,
		.position = o->position,
		.at_position = o->start_at_position != 0,
		.rank = o->rank,
		.world = o->world,
		.micro_batch = o->micro_batch,
	};
	struct patience patience;
	struct generation *g;
	struct cursor cursor;
	int fd;
	int r = check_options(t, o);

	if (r == 0)
		r = handle_check_target(t, &target);
	if (r < 0)
		return r;
	if (!make_buffers(t, o))
		return handle_fail(t, TOKEND_EMEMORY, "memory: out of memory");
	t->peer = o->peer;
	t->slots = o->slots;
	t->helper = o->helper != 0;
	t->strict = o->strict != 0;
	t->deadline_ms = o->deadline_ms ? o->deadline_ms : DEADLINE_MS;
	patience = (struct patience){.connect_ms = o->connect_ms, .deadline_ms = t->deadline_ms};
	r = handle_find(t, &target, &patience, &g, &cursor, &fd);
	if (r < 0)
		return r;
	handle_adopt(t, g, fd);
	handle_start(t, &cursor, &target);
	return handle_speak(t, t->taken) ? 0 : TOKEND_EMEMORY;
}

int tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes)
{
	struct tokend_options o;
	struct tokend *t = calloc(1, sizeof(*t));
	int r = TOKEND_EMEMORY;

	*out = NULL;
	if (why && why_bytes)
		snprintf(why, why_bytes, "memory: out of memory");
	if (!t)
		return r;
	t->fd = t->search.fd = t->kept.fd = -1;
	if (read_options(&o, options)) {
		t->call = (struct callbacks){
			.idle = o.idle,
			.absent = o.absent,
			.notice = o.notice,
			.context = o.context,
			.warn = o.warn,
			.warn_context = o.warn_context,
		};
		r = attach(t, &o);
	} else {
		r = handle_fail(t, TOKEND_EARGUMENT,
			"size: %zu: set it to sizeof(struct tokend_options) and everything unused "
			"to 0",
			options->size);
	}
	if (why && why_bytes)
		snprintf(why, why_bytes, "%s", t->why);
	if (r == 0)
		*out = t;
	else
		tokend_detach(t);
	return r;
}

void tokend_detach(struct tokend *t)
{
	if (!t)
		return;

	/* A child has neither the segments nor, any more, a right to close descriptors by number.
	 */
	bool ours = t->alive && !handle_forked(t);

	handle_end_record(t, ours);
	for (struct generation *g = t->now, *older; g; g = older) {
		older = g->older;
		generation_free(g, ours);
	}
	if (ours) {
		if (t->kept.ring && t->kept.fd >= 0)
			close(t->kept.fd);
		pin_close(t->pin);
		handle_lose(t);
		handle_stop_search(&t->search);
	}
	if (t->alive)
		munmap((void *)t->alive, RING_PAGE);
	cursor_free(&t->origin);
	cursor_free(&t->kept.origin);
	cursor_free(&t->spoken);
	free(t->socket);
	free(t->stream);
	free(t->run);
	free(t->bytes);
	free(t->saved);
	free(t->out);
	if (t->packet && ours)
		packet_close(t->packet);
	free(t->packet);
	free(t->leg);
	free(t);
}

void handle_adopt(struct tokend *t, struct generation *g, int fd)
{
	struct generation *old = t->now;

	handle_hear_warnings(t);
	handle_lose(t);
	t->fd = fd;
	t->now = g;
	g->older = old;
	if (old && generation_idle(old)) {
		g->older = old->older;
		generation_free(old, true);
	}
	if (t->pins)
		handle_pin(t, g); /* if it cannot be, copies are slower: tokend_shape() shows it */
}

void tokend_shape(const struct tokend *t, struct tokend_shape *shape)
{
	const struct ring_geometry *g = &t->now->ring.geometry;

	*shape = (struct tokend_shape){
		.rows = g->rows,
		.window_tokens = g->window_tokens,
		.token_bytes = g->token_bytes,
		.slots = g->slots,
		.seq_len = t->origin.seq_len,
		.rank = t->rank,
		.world = t->world,
		.batches = t->batches,
		.data_bytes = g->data_bytes,
		.lost_wakes = t->lost_wakes,
		.reattached = t->reattached,
		.waited_ns = t->waited_ns,
		.pinned_bytes = t->now->copies ? copies_registered(t->now->copies) : 0,
		.copying = t->copying,
	};
}

const char *tokend_dataset(const struct tokend *t, uint32_t dataset)
{
	return dataset < t->origin.datasets ? t->origin.dataset[dataset].name : NULL;
}

const char *tokend_run(const struct tokend *t)
{
	return t->run;
}

const char *tokend_stream_name(const struct tokend *t)
{
	return t->stream;
}

unsigned tokend_annotations(const struct tokend *t)
{
	const struct ring_geometry *g = &t->now->ring.geometry;

	return (g->documents ? TOKEND_DOCUMENTS : 0u) | (g->loss_mask ? TOKEND_LOSS_MASK : 0u);
}

int tokend_forked(const struct tokend *t)
{
	return handle_forked(t);
}

int tokend_lost(const struct tokend *t)
{
	return t->fd < 0;
}

uint64_t tokend_position(const struct tokend *t)
{
	return handle_position(t);
}

uint64_t tokend_taken(const struct tokend *t)
{
	return t->taken;
}

void tokend_leave(struct tokend *t)
{
	if (!handle_forked(t))
		handle_lose(t);
}

uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value)
{
	return order_derive(seed, tag, value);
}

int tokend_default_socket(char *path, size_t capacity)
{
	char own[WIRE_SOCKET_BYTES];
	const char *found = place_socket(own);

	if (strlen(found) >= capacity)
		return TOKEND_EMEMORY;
	memcpy(path, found, strlen(found) + 1);
	return 0;
}

/* ---- the daemon's other services ---- */

int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes)
{
	struct wire question = {.op = WIRE_CHECKPOINT};
	int r = handle_check(t);

	if (r < 0)
		return r;
	if (!tag || !wire_name_ok(tag))
		return fail_name(t, "tag", tag ? tag : "");

	int64_t n = tokend_cursor(t, t->saved, LIMIT_CURSOR_BYTES);

	if (n < 0)
		return (int)n;
	wire_set_text(&question, WIRE_TAG, tag);
	wire_set_bytes(&question, WIRE_CURSOR, t->saved, (size_t)n);
	r = handle_ask(t, &question, WIRE_SAVED);
	if (r == 0 && path && path_bytes) {
		struct wire_bytes saved = wire_bytes(&t->packet->wire, WIRE_PATH);

		snprintf(path, path_bytes, "%.*s", (int)saved.n, saved.at);
	}
	return r;
}
