/* Creating and freeing a handle. */
#include "client/lib/tokend.h"

#include "client/lib/connect.h"
#include "client/lib/options.h"
#include "client/lib/places.h"
#include "client/lib/position.h"
#include "client/lib/private.h"
#include "client/lib/recording.h"
#include "client/lib/search.h"
#include "client/lib/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEADLINE_MS = 300000 };

#define FOREVER_MS (INT64_MAX / 2 / WAIT_MS)

_Static_assert(TOKEND_PADDING == RING_PADDING && TOKEND_ENDLESS == RING_ENDLESS,
	"part of the public interface");
_Static_assert(TOKEND_MICRO_BATCH == LIMIT_MICRO_BATCH, "part of the public interface");
_Static_assert(TOKEND_CURSOR_BYTES == LIMIT_CURSOR_BYTES, "part of the public interface");

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
	struct places places;

	t->anywhere = !o->socket && !o->config;
	places_read(&places, o->socket, NULL);
	/* With a config alone, private_find() sets the socket. */
	t->socket = strdup(o->config && !o->socket ? "" : places_choose(&places));
	t->stream = strdup(o->stream);
	t->run = strdup(o->run ? o->run : "default");
	t->bytes = malloc(LIMIT_CURSOR_BYTES);
	t->saved = malloc(LIMIT_CURSOR_BYTES);
	t->out = malloc(LIMIT_PACKET_BYTES);
	t->packet = malloc(sizeof(*t->packet));
	t->grid = malloc(sizeof(*t->grid));
	if (t->packet)
		t->packet->fds = 0;
	return t->socket && t->stream && t->run && t->bytes && t->saved && t->out && t->packet &&
	       t->grid && make_fork_page(t);
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
	struct mapping *m;
	struct cursor cursor;
	int fd;
	int r = options_check(t, o);

	if (r == 0)
		r = attach_check(t, &target);
	if (r < 0)
		return r;
	if (!make_buffers(t, o))
		return handle_memory(t);
	t->peer = o->peer;
	t->slots = o->slots;
	t->helper = o->helper != 0;
	t->strict = o->strict != 0;
	t->deadline_ms = o->deadline_ms ? o->deadline_ms : DEADLINE_MS;
	t->max_wait_ns = o->max_wait_ms && o->max_wait_ms < FOREVER_MS
				 ? (int64_t)o->max_wait_ms * WAIT_MS
				 : FOREVER_MS * WAIT_MS;
	patience = (struct patience){
		.connect_ms = o->connect_ms, .deadline_ms = t->deadline_ms, .since = wait_now()};
	if (o->config && !patience.connect_ms)
		patience.connect_ms = t->deadline_ms;
	if (o->config)
		r = o->socket ? private_join(t, o->config)
			      : private_find(t, o->config, patience.connect_ms);
	if (r < 0)
		return r;
	r = attach_find(t, &target, &patience, &m, &cursor, &fd);
	if (r < 0)
		return r;
	attach_adopt(t, m, fd);
	position_start(t, &cursor, &target);
	return position_cursor(t, t->taken) ? position_check(t) : handle_error(t);
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
	t->fd = t->search.fd = t->undo.fd = -1;
	if (options_read(&o, options)) {
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
		r = handle_fail(t, TOKEND_EARGUMENT, "size",
			"%zu; set it to sizeof(struct tokend_options), and all unused members to 0",
			options->size);
	}
	if (why && why_bytes)
		snprintf(why, why_bytes, "%s", t->line);
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

	/* A forked child has no mappings. It must not close descriptors: the numbers may belong to
	 * other files by now. */
	bool ours = t->alive && !handle_forked(t);

	recording_end(t, ours);
	for (struct mapping *m = t->mapping, *older; m; m = older) {
		older = m->older;
		mapping_close(m, ours);
	}
	if (ours) {
		if (t->undo.mapping && t->undo.fd >= 0)
			close(t->undo.fd);
		private_end(t);
		handle_lose(t);
		search_end(&t->search);
	}
	if (t->alive)
		munmap((void *)t->alive, RING_PAGE);
	cursor_free(&t->origin);
	cursor_free(&t->undo.origin);
	cursor_free(&t->moved);
	free(t->socket);
	free(t->config);
	free(t->stream);
	free(t->run);
	free(t->bytes);
	free(t->saved);
	free(t->out);
	if (t->packet && ours)
		packet_close(t->packet);
	free(t->packet);
	free(t->grid);
	free(t);
}

void tokend_leave(struct tokend *t)
{
	if (!handle_forked(t))
		handle_lose(t);
}
