#include "tests/sim/node.h"

#include "daemon/catalog/catalog.h"
#include "daemon/control/control.h"
#include "daemon/shard/format.h"
#include "tests/disk/model.h"
#include "tests/sim/plan.h"
#include "tests/unit/random_part.h"

#include <signal.h>
#include <stdarg.h>

struct world_counts world_counts;
bool world_stamps;
struct node world_node[NODES_MOST];
unsigned world_nodes, world_version;
struct stream_plan world_stream[STREAMS];

/* ---- what the daemon calls, and the simulator does not need ---- */

static void say(enum log_level level, const char *format, va_list args)
{
	const struct proc *p = fiber_proc();
	char line[2048];

	vsnprintf(line, sizeof(line), format, args);
	world_say("node %u <%d> %s", p && p->node ? p->node->number : 99, (int)level, line);
}

void log_write(bool client, uid_t uid, enum log_level level, const char *format, ...)
{
	va_list args;

	(void)client, (void)uid;
	va_start(args, format);
	say(level, format, args);
	va_end(args);
}

void log_flush(void)
{
}

unsigned log_faults(struct log_fault fault[LOG_FAULTS])
{
	(void)fault;
	return 0;
}

void notify(const char *state)
{
	(void)state;
}

int notify_failed_start(const char *why)
{
	log_line(LOG_ERROR, "%s", why);
	return 1;
}

void notify_starting(bool is)
{
	(void)is;
}

uint64_t notify_watchdog_ms(void)
{
	return 10000;
}

void listener_close(struct listener *l)
{
	if (l->fd >= 0) {
		int __wrap_close(int fd);

		__wrap_close(l->fd);
	}
	l->fd = -1;
}

/* ---- streams ---- */

static void source_make(struct source *s, unsigned number, const struct stream_plan *stream)
{
	uint64_t window = stream->seq_len + stream->extra;
	static const uint32_t sizes[] = {1, 2, 7, 64};

	snprintf(s->name, sizeof(s->name), "%c%u", 'z' - (int)draw(20), number % 10);
	s->key = rng_next(&world_rng);
	s->shards = 1 + draw(SHARDS);
	for (uint64_t i = 0; i < s->shards; i++)
		s->tokens[i] = chance(5) ? draw(window + 2) : window + draw(window * 60);
	s->tokens[0] += window;
	s->weight = 0.01 + (double)draw(100);
	s->block = sizes[draw(4)];
	s->group = sizes[draw(4)];
	s->shuffle = (enum order_shuffle)draw(3);
	s->slide = chance(2);
	random_part(&world_rng, plan_path_windows(stream, s), &s->lo, &s->hi);
	if (chance(2)) {
		s->lo = 0;
		s->hi = ORDER_UNITS;
	}
}

void streams_make(void)
{
	for (unsigned i = 0; i < STREAMS; i++) {
		struct stream_plan *s = &world_stream[i];

		*s = (struct stream_plan){.seed = rng_next(&world_rng), .seq_len = 1 + draw(20)};
		snprintf(s->name, sizeof(s->name), "s%u", i);
		s->extra = draw(3);
		s->stride = 1 + draw(2 * s->seq_len);
		s->token_bytes = chance(2) ? 2 : 4;
		s->datasets = 1 + (uint32_t)draw(DATASETS);
		for (unsigned d = 0; d < s->datasets; d++)
			source_make(&s->source[d], d, s);
		s->first_datasets = 1 + (uint32_t)draw(s->datasets);
		/* The first stream is endless: others may end. */
		if (i == 1 && chance(2))
			s->epochs = 1 + draw(3);
		else if (i == 1)
			s->samples = 1 + draw(4000);
		if (s->epochs)
			s->first_datasets = s->datasets;
	}
}

uint32_t stream_datasets(const struct stream_plan *s, unsigned version)
{
	return version ? s->datasets : s->first_datasets;
}

/* ---- the daemon ---- */

static void make_dataset(const struct stream_plan *plan, unsigned number, struct dataset *d,
	struct config_dataset *c)
{
	const struct source *s = &plan->source[number];
	static char paths[] = "0\0001\0002\0003";
	static uint32_t at[] = {0, 2, 4, 6};

	snprintf(c->name, sizeof(c->name), "%s", s->name);
	c->weight = s->weight;
	c->shuffle = s->shuffle;
	c->block = s->block;
	c->group = s->group;
	c->slide = s->slide;
	c->lo = s->lo;
	c->hi = s->hi;
	*d = (struct dataset){.config = c,
		.format = &shard_npy,
		.list = {.root = (char *)"/data", .paths = paths, .at = at, .count = s->shards},
		.token_bytes = plan->token_bytes};
	d->digest = s->key;
	d->table = (struct table){.window_tokens = plan->seq_len + plan->extra,
		.stride = plan->stride,
		.shards = s->shards,
		.tokens = __wrap_calloc(s->shards, sizeof(uint64_t)),
		.first_window = __wrap_calloc(s->shards + 1, sizeof(uint64_t))};
	memcpy(d->table.tokens, s->tokens, s->shards * sizeof(uint64_t));
	table_number(&d->table);
}

static void make_stream(
	const struct stream_plan *plan, unsigned version, struct stream *s, struct config_stream *c)
{
	uint32_t n = stream_datasets(plan, version);
	struct cursor id = {.seed = plan->seed,
		.seq_len = plan->seq_len,
		.extra = plan->extra,
		.stride = plan->stride,
		.epochs = plan->epochs,
		.samples = plan->samples};
	struct cursor_source source[DATASETS];
	struct fault fault;

	memcpy(c->name, plan->name, sizeof(plan->name));
	memcpy(id.stream, plan->name, sizeof(plan->name));
	c->seed = plan->seed;
	c->seq_len = plan->seq_len;
	c->extra = plan->extra;
	c->stride = plan->stride;
	c->epochs = plan->epochs;
	c->samples = plan->samples;
	c->datasets = n;
	c->dataset = __wrap_calloc(n, sizeof(*c->dataset));
	s->config = c;
	s->file = "sim.yaml";
	s->slot = (uint32_t)(plan - world_stream);
	s->token_bytes = plan->token_bytes;
	s->dataset = __wrap_calloc(n, sizeof(*s->dataset));
	for (uint32_t d = 0; d < n; d++) {
		make_dataset(plan, d, &s->dataset[d], &c->dataset[d]);
		dataset_source(&s->dataset[d], &source[d]);
	}
	CHECK(cursor_begin(&s->begin, &id, source, n, NULL, 0, &fault));
}

struct catalog *catalog_make(unsigned version, uint64_t memory)
{
	struct config *c = __wrap_calloc(1, sizeof(*c));
	struct catalog *catalog = __wrap_calloc(1, sizeof(*catalog));

	c->path = (char *)"/etc/sim.yaml";
	c->directory = (char *)"/etc";
	c->memory_bytes = memory;
	c->allow_uids = USERS;
	c->allow_uid = __wrap_calloc(USERS, sizeof(uid_t));
	for (unsigned i = 0; i < USERS; i++)
		c->allow_uid[i] = 1000 + i;
	c->streams = STREAMS;
	c->stream = __wrap_calloc(STREAMS, sizeof(*c->stream));
	catalog->config = c;
	catalog->stream = __wrap_calloc(STREAMS, sizeof(*catalog->stream));
	for (unsigned i = 0; i < STREAMS; i++)
		make_stream(&world_stream[i], version, &catalog->stream[i], &c->stream[i]);
	return catalog;
}

static void daemon_ended(struct proc *p)
{
	struct node *node = p->node;

	if (node->daemon == p)
		node->daemon = NULL;
	else
		node->old = NULL;
}

static void daemon_main(void *argument)
{
	struct node *node = argument;
	struct proc *self = fiber_proc();
	struct reload_kept kept = {.memfd = -1, .listener.lock_fd = -1};
	_Atomic uint64_t rereads = 0;

	fiber_sleep((int64_t)draw(50 * MILLI)); /* opens shards */
	self->ring_limit = node->memory_bytes;

	struct catalog *catalog = catalog_make(node->version, node->memory_bytes);
	const struct reading reading = {
		.reader = storage_reader(node),
		.depth = 1 + (unsigned)draw(64),
		.sessions = 200,
	};
	uint64_t before = self->bytes;

	kept.listener.fd = fd_add(self, socket_listen(self, node->socket));
	snprintf(kept.listener.path, sizeof(kept.listener.path), "%s", node->socket);

	if (chance(3)) /* as after a restart of tokend.service: the socket was always there */
		fiber_sleep((int64_t)draw(SECOND));

	struct server_options options = {.catalog = catalog,
		.kept = &kept,
		.reading = &reading,
		.rereads = &rereads,
		.state_dir = "/state"};
	int status = server_run(&options);

	CHECK(status == 0);
	CHECK(node->old == self);
	CHECK(self->ring_bytes == 0 && !self->views);
	/* It has freed all that it allocated, unless the keeper still waits for the disk. There is
	 * also the thread that would have ended it by force. */
	if (fiber_count(self) <= 2) {
		CHECK(fd_count(self) == 0);
		CHECK(self->bytes <= before);
	}
	proc_kill(self);
}

void node_make(struct node *node, unsigned number)
{
	*node = (struct node){.number = number, .disk = disk_new()};
	node->disk->names_retried = true; /* several calls in a row may fail here */
	snprintf(node->socket, sizeof(node->socket), "/run/tokend-%u", number);
	node->storage.latency = (int64_t)(20 + draw(400)) * MICRO;
	node->memory_bytes = chance(4) ? (12 + draw(60)) << 10 : UINT64_C(1) << 30;
}

void node_free(struct node *node)
{
	CHECK(!node->daemon && !node->old);
	disk_free(node->disk);
}

void node_start(struct node *node)
{
	char name[32];

	CHECK(!node->daemon);
	snprintf(name, sizeof(name), "tokend-%u", node->number);
	node->version = world_version;
	node->daemon = proc_new(name, 0, node);
	node->daemon->ended = daemon_ended;
	fiber_new(node->daemon, daemon_main, node);
}

bool node_stop(struct node *node)
{
	if (!node->daemon || node->old || !node->daemon->loops)
		return false;
	node->old = node->daemon;
	node->daemon = NULL;
	node->stopped_since = fiber_now;
	loop_signal(node->old, SIGTERM);
	return true;
}

bool node_old_config(const struct node *node)
{
	return node->daemon && node->daemon->ring_limit > 0 &&
	       (node->daemon->ring_limit != node->memory_bytes || node->version != world_version);
}

void node_kill(struct node *node)
{
	if (node->daemon)
		proc_kill(node->daemon);
	if (node->old)
		proc_kill(node->old);
}
