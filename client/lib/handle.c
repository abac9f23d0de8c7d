/* A handle: its errors, making and freeing it, and what it shows of itself. */
#include "client/lib/handle.h"

#include "proto/phrases.h"
#include "proto/version.h"
#include "proto/wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(LIMIT_NAME_BYTES == 64, "PHRASE_NAME says so");

int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...)
{
	char text[LIMIT_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fault_set(&t->fault, FAULT_ARGUMENT, field, "%s", text);
	error_line(&t->fault, t->line, sizeof(t->line));
	return error;
}

int handle_fault(struct tokend *t, const struct fault *fault)
{
	t->fault = *fault;
	return error_line(&t->fault, t->line, sizeof(t->line));
}

int handle_memory(struct tokend *t)
{
	struct fault fault;

	fault_memory(&fault);
	return handle_fault(t, &fault);
}

int handle_fail_name(struct tokend *t, const char *field, const char *name)
{
	return handle_fail(t, TOKEND_EARGUMENT, field, "'%.*s%s' is not " PHRASE_NAME,
		LIMIT_NAME_BYTES, name, strlen(name) > LIMIT_NAME_BYTES ? "…" : "");
}

int handle_latch(struct tokend *t, int error)
{
	t->failed = error;
	t->failure = t->fault;
	return error;
}

int handle_broken(struct tokend *t, const char *invariant)
{
	return handle_latch(
		t, handle_fail(t, TOKEND_EPROTOCOL, "handle",
			   "bug in libtokend, please report it: %s does not hold", invariant));
}

int handle_failed(struct tokend *t)
{
	handle_fault(t, &t->failure);
	return t->failed;
}

void handle_tell(const struct tokend *t, const char *line)
{
	const struct tokend_options *o = &t->options;

	if (o->notice)
		o->notice(o->context, line);
	else if (o->warn)
		o->warn(o->warn_context, line);
}

void handle_lose(struct tokend *t)
{
	link_close(t->fd);
	t->fd = -1;
	t->saving = 0;
}

static const char forked[] =
	"fork: this handle belongs to the parent process; attach again in the child, as another "
	"peer or rank (in a DataLoader: num_workers=0)";

const char *tokend_why(const struct tokend *t)
{
	return handle_forked(t) ? forked : t->line;
}

const char *tokend_field(const struct tokend *t)
{
	return handle_forked(t) ? "fork" : t->fault.field;
}

/* Of this process's own faults. A daemon's refusal has another code first (query.c): an argument or
 * a cursor that is wrong here is the caller's, and there the daemon's to refuse. */
enum tokend_error error_of(enum fault_code code)
{
	static const int errors[FAULT_CODES] = {
		[FAULT_ARGUMENT] = TOKEND_EARGUMENT,
		[FAULT_CURSOR] = TOKEND_EARGUMENT,
		[FAULT_MEMORY] = TOKEND_EMEMORY,
		[FAULT_DESCRIPTORS] = TOKEND_EMEMORY,
		[FAULT_DATA] = TOKEND_EDATA,
		[FAULT_TOKEN] = TOKEND_EDATA,
		[FAULT_CHANGED] = TOKEND_EDATA,
		[FAULT_PROTOCOL] = TOKEND_EPROTOCOL,
		[FAULT_ATTACH] = TOKEND_EREFUSED,
		[FAULT_CHECKPOINT] = TOKEND_EREFUSED,
		[FAULT_REQUEST] = TOKEND_EREFUSED,
		[FAULT_STATE_DIR] = TOKEND_EREFUSED,
		[FAULT_PERMISSION] = TOKEND_EREFUSED,
	};

	return errors[code] ? errors[code] : TOKEND_EARGUMENT;
}

enum tokend_error error_line(const struct fault *fault, char *line, size_t line_bytes)
{
	if (line && line_bytes)
		snprintf(line, line_bytes, "%s%s%s", fault->field, fault->field[0] ? ": " : "",
			fault->text);
	return error_of(fault->code);
}

enum { TAG_BYTES = 2 * LIMIT_NAME_BYTES + 1 }; /* RUN/TAG */

/* Copies @given, which may be another version of the struct: members that it lacks become 0. False
 * if its size is invalid, or if it sets a member that this version does not have. */
static bool options_read(struct tokend_options *o, const struct tokend_options *given)
{
	const char *bytes = (const char *)given;
	size_t n = given->size;

	if (n < offsetof(struct tokend_options, helper))
		return false;
	memcpy(o, given, n < sizeof(*o) ? n : sizeof(*o));
	while (n > sizeof(*o))
		if (bytes[--n] != 0)
			return false;
	return true;
}

static int options_check(struct tokend *t, const struct tokend_options *o)
{
	int starts = (o->cursor != NULL) + (o->tag != NULL) + (o->start_at_position != 0);

	if (!o->stream)
		return handle_fail(t, TOKEND_EARGUMENT, "stream",
			"is missing; name a stream of the daemon's config");
	if (!wire_name_ok(o->stream))
		return handle_fail_name(t, "stream", o->stream);
	if (o->run && !wire_name_ok(o->run))
		return handle_fail_name(t, "run", o->run);
	if (o->strict && !o->run)
		return handle_fail(t, TOKEND_EARGUMENT, "strict",
			"needs a run, as all unnamed jobs share run default; set run");
	if (starts > 1)
		return handle_fail(t, TOKEND_EARGUMENT, "start",
			"%d of cursor, tag and position are set; set one", starts);
	if (o->cursor && (o->cursor_bytes == 0 || o->cursor_bytes > LIMIT_CURSOR_BYTES))
		return handle_fail(t, TOKEND_EARGUMENT, "cursor", "%zu bytes; a cursor has 1 to %d",
			o->cursor_bytes, LIMIT_CURSOR_BYTES);
	if (o->tag && strlen(o->tag) > TAG_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT, "tag",
			"%zu bytes; TAG or RUN/TAG has at most %d", strlen(o->tag), TAG_BYTES);
	if (o->slots > LIMIT_SLOTS)
		return handle_fail(t, TOKEND_EARGUMENT, "slots", "%u; must be at most %d", o->slots,
			LIMIT_SLOTS);
	return 0;
}

enum { DEADLINE_MS = 300000 };

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

/* Finds the socket. With a config alone, `tokctl start` does. */
static int find(struct tokend *t, const struct tokend_options *o, uint32_t connect_ms)
{
	struct places places;
	const char *path;

	if (o->config && !o->socket)
		return start_find(t, o->config, connect_ms);
	places_read(&places, o->socket, NULL);
	path = places_choose(&places);
	if (strlen(path) >= sizeof(t->socket))
		return handle_fail(t, TOKEND_ECONNECT, "socket",
			"%s has %zu bytes; a socket's path has at most 107", path, strlen(path));
	strcpy(t->socket, path);
	return o->config ? start_join(t, o->config) : 0;
}

static int attach(struct tokend *t)
{
	const struct tokend_options *o = &t->options;
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
	uint32_t connect_ms = o->connect_ms;
	struct mapping *m;
	struct cursor cursor;
	int fd;
	int r = options_check(t, o);

	if (r == 0)
		r = attach_check(t, &target);
	if (r < 0)
		return r;
	if (!make_fork_page(t))
		return handle_memory(t);
	if (!o->deadline_ms)
		t->options.deadline_ms = DEADLINE_MS;
	if (o->config && !connect_ms)
		connect_ms = t->options.deadline_ms;
	t->max_wait_ns = o->max_wait_ms && o->max_wait_ms < FOREVER / WAIT_MS
				 ? (int64_t)o->max_wait_ms * WAIT_MS
				 : FOREVER;
	strcpy(t->stream, o->stream);
	strcpy(t->run, o->run ? o->run : "default");
	r = find(t, o, connect_ms);
	if (r < 0)
		return r;
	r = attach_find(t, &target, connect_ms, true, &m, &cursor, &fd);
	if (r < 0)
		return r;
	attach_adopt(t, m, fd);
	position_start(t, &cursor, &target);
	return position_check(t);
}

int tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes)
{
	struct tokend *t = calloc(1, sizeof(*t));
	int r = TOKEND_EMEMORY;

	*out = NULL;
	if (why && why_bytes)
		snprintf(why, why_bytes, "memory: out of memory");
	if (!t)
		return r;
	t->fd = t->search.fd = t->undo.fd = -1;
	r = options_read(&t->options, options)
		    ? attach(t)
		    : handle_fail(t, TOKEND_EARGUMENT, "size",
			      "%zu; set it to sizeof(struct tokend_options), and all unused "
			      "members to 0",
			      options->size);
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
		link_close(t->undo.fd);
		start_end(t);
		handle_lose(t);
		search_end(&t->search);
	}
	if (t->alive)
		munmap((void *)t->alive, RING_PAGE);
	cursor_free(&t->origin);
	cursor_free(&t->undo.origin);
	free(t->config);
	if (ours)
		packet_close(&t->packet);
	free(t->skip);
	free(t);
}

void tokend_shape(const struct tokend *t, struct tokend_shape *shape)
{
	const struct ring_geometry *g = &t->mapping->ring.geometry;

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

const char *tokend_socket(const struct tokend *t)
{
	return t->socket;
}

const char *tokend_config(const struct tokend *t)
{
	return t->config;
}

unsigned tokend_annotations(const struct tokend *t)
{
	const struct ring_geometry *g = &t->mapping->ring.geometry;

	return (g->documents ? TOKEND_DOCUMENTS : 0u) | (g->loss_mask ? TOKEND_LOSS_MASK : 0u);
}

int tokend_memory(struct tokend *t, void **base, uint64_t *bytes,
	void (*gone)(void *context, void *base, uint64_t bytes), void *context)
{
	struct mapping *m = t->mapping;

	if (handle_forked(t))
		return TOKEND_EFORKED;
	if (!gone)
		return handle_fail(t, TOKEND_EARGUMENT, "gone",
			"is NULL; pass a function that unregisters the memory");
	*base = m->data;
	*bytes = m->ring.geometry.control_at;
	if (m->gone)
		return 0;
	m->gone = gone;
	m->context = context;
	return 1;
}

int tokend_forked(const struct tokend *t)
{
	return handle_forked(t);
}

int tokend_lost(const struct tokend *t)
{
	return t->fd < 0;
}

uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value)
{
	return order_derive(seed, tag, value);
}

const char *tokend_version(void)
{
	return TOKEND_VERSION;
}
