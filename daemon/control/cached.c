/* `tokctl cache`: what is in the cache, by dataset, and removing a dataset from it. */
#include "daemon/control/control.h"
#include "daemon/store/store.h"
#include "daemon/store/sums.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
	DROP_MOST = 4096,	/* pieces an answer: about a second of hole punching */
	REPLY_BYTES = 96 << 10, /* of the list, so that it fits a packet */
};

struct row {
	const struct dataset *dataset; /* NULL: objects of no dataset */
	uint64_t objects, pieces, bytes;
};

struct job {
	struct state_job job; /* first member */
	struct control *control;
	bool drop, more;
	uint64_t dropped;
	unsigned rows;
	struct row row[]; /* row 0 has no dataset; then those in stores, each URL once */
};

static void add_object(void *context, const char *url, uint64_t pieces, uint64_t bytes)
{
	struct job *job = context;
	bool found = false;

	for (unsigned i = job->rows; i-- > 0;) {
		struct row *row = &job->row[i];
		const char *root = i ? row->dataset->root : "";
		size_t n = strlen(root);

		if (i ? strncmp(url, root, n) != 0 || url[n] != '/' : found)
			continue;
		row->objects++;
		row->pieces += pieces;
		row->bytes += bytes;
		found = true;
	}
}

/* In the pool. */
static void cached_work(struct state_job *work)
{
	struct job *job = (struct job *)work;
	struct stores *stores = job->control->stores.stores;
	char url[LIMIT_TEXT_BYTES];

	if (!job->drop)
		store_cached(stores, add_object, job);
	for (unsigned i = 1; job->drop && i < job->rows && job->dropped < DROP_MOST; i++) {
		int n = snprintf(url, sizeof(url), "%s/", job->row[i].dataset->root);

		if (n > 0 && (size_t)n < sizeof(url))
			job->dropped += store_uncache(stores, url, DROP_MOST - job->dropped);
	}
	job->more = job->dropped >= DROP_MOST;
}

/* Of a dataset that is read in pieces; otherwise 0. */
static uint64_t all_pieces(const struct dataset *d)
{
	uint64_t pieces = 0;

	for (uint64_t s = 0; d->piece > 0 && s < d->table.shards; s++)
		pieces += sums_pieces(d->sizes[s], d->piece);
	return pieces;
}

/* The streams that read the dataset's directory, and its pieces if one of them reads those. */
static void put_readers(json_t *object, const struct catalog *catalog, const char *root)
{
	json_t *streams = json_array();
	uint64_t all = 0;

	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		const struct stream *stream = &catalog->stream[s];
		bool reads = false;

		for (uint32_t i = 0; i < stream->config->datasets; i++) {
			const struct dataset *d = &stream->dataset[i];

			if (!d->objects || strcmp(d->root, root) != 0)
				continue;
			reads = true;
			all = all > 0 ? all : all_pieces(d);
		}
		if (reads)
			json_array_append_new(streams, json_string(stream->config->name));
	}
	json_object_set_new(object, "all", json_integer((json_int_t)all));
	json_object_set_new(object, "streams", streams);
}

static json_t *put_row(const struct job *job, const struct row *row)
{
	json_t *object = json_pack("{s:I, s:I, s:I}", "objects", (json_int_t)row->objects, "pieces",
		(json_int_t)row->pieces, "bytes", (json_int_t)row->bytes);

	if (!row->dataset)
		return object;
	json_object_set_new(object, "dataset", json_string(row->dataset->config->name));
	json_object_set_new(object, "url", json_string(row->dataset->root));
	put_readers(object, job->control->catalog, row->dataset->root);
	return object;
}

static json_t *put_rows(struct job *job)
{
	json_t *list = json_array();
	size_t bytes = 0;

	for (unsigned i = 1; i < job->rows && !job->more; i++) {
		json_t *row = put_row(job, &job->row[i]);

		bytes += json_dumpb(row, NULL, 0, JSON_COMPACT) + 1;
		job->more = bytes > REPLY_BYTES;
		if (!job->more)
			json_array_append(list, row);
		json_decref(row);
	}
	return list;
}

static void reply(struct connection *c, struct job *job)
{
	struct wire out = {.op = WIRE_CACHE};
	json_t *all = job->drop ? json_pack("{s:I}", "pieces", (json_int_t)job->dropped)
				: json_pack("{s:o, s:o, s:o}", "datasets", put_rows(job), "other",
					  put_row(job, &job->row[0]), "cache",
					  status_cache(&job->control->stores, false));
	char *text;
	struct fault fault;

	json_object_set_new(all, "more", json_boolean(job->more));
	text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	if (!text) {
		fault_memory(&fault);
		connection_error(c, job->job.serial, &fault);
		return;
	}
	wire_set_text(&out, WIRE_KIND, job->drop ? "drop" : "ls");
	wire_set_text(&out, WIRE_ARGS, text);
	connection_send(c, job->job.serial, &out);
	free(text);
}

static void cached_done(struct state_job *work)
{
	if (work->connection)
		reply(work->connection, (struct job *)work);
	free(work);
}

/* Adds a row for the dataset if it is in a store, unless its directory has one. */
static void add_row(struct job *job, const struct dataset *d)
{
	unsigned i = 1;

	while (i < job->rows && strcmp(job->row[i].dataset->root, d->root) != 0)
		i++;
	if (d->objects && i == job->rows)
		job->row[job->rows++].dataset = d;
}

/* A job for the datasets called @name; NULL: for all. Returns NULL if there is no memory. *@found:
 * how many there are, local ones included. */
static struct job *job_new(struct control *control, const char *name, unsigned *found)
{
	const struct catalog *catalog = control->catalog;
	struct job *job;
	size_t most = 1;

	for (uint32_t s = 0; s < catalog->config->streams; s++)
		most += catalog->stream[s].config->datasets;
	job = calloc(1, sizeof(*job) + most * sizeof(job->row[0]));
	if (!job)
		return NULL;
	job->job.work = cached_work;
	job->job.done = cached_done;
	job->control = control;
	job->drop = name;
	job->rows = 1;
	*found = 0;
	for (uint32_t s = 0; s < catalog->config->streams; s++)
		for (uint32_t i = 0; i < catalog->stream[s].config->datasets; i++) {
			const struct dataset *d = &catalog->stream[s].dataset[i];

			if (name && strcmp(d->config->name, name) != 0)
				continue;
			++*found;
			add_row(job, d);
		}
	return job;
}

/* NULL with @fault. */
static struct job *read_query(struct connection *c, const struct wire *w, struct fault *fault)
{
	const struct config *config = c->control->config;
	char kind[8] = "", name[LIMIT_NAME_BYTES + 1];
	struct store_cache_status status;
	bool named = wire_text(w, WIRE_DATASET, name, sizeof(name)) && wire_label_ok(name);
	bool drop = wire_text(w, WIRE_KIND, kind, sizeof(kind)) && strcmp(kind, "drop") == 0;
	unsigned found;
	struct job *job = NULL;

	if (!c->control->stores.stores || !store_cache_status(c->control->stores.stores, &status))
		fault_set(fault, FAULT_REQUEST, "cache",
			"this daemon has no cache; `cache:` in %s sets one", config->path);
	else if (c->errand)
		fault_set(fault, FAULT_REQUEST, "connection",
			"already waits for another reply; open another connection");
	else if (!drop && strcmp(kind, "ls") != 0)
		fault_set(fault, FAULT_REQUEST, "kind", "must be ls or drop");
	else if (drop && !named)
		fault_set(fault, FAULT_REQUEST, "dataset", "must be the name of a dataset");
	else if (drop && !runs_privileged(config, c->uid))
		fault_set(fault, FAULT_REQUEST, "uid",
			"only root, the daemon's user and admin_uids may drop a dataset from the "
			"cache, not uid %u",
			(unsigned)c->uid);
	else if (!(job = job_new(c->control, drop ? name : NULL, &found)))
		fault_memory(fault);
	if (!job || !drop || job->rows > 1)
		return job;
	free(job);
	if (found == 0)
		fault_set(fault, FAULT_REQUEST, "dataset",
			"%s has no dataset %s; `tokctl cache ls` lists those in stores",
			config->path, name);
	else
		fault_set(fault, FAULT_REQUEST, "dataset",
			"%s is on the disk, and so not in the cache", name);
	return NULL;
}

void cached_query(struct connection *c, const struct wire *w)
{
	struct fault fault;
	struct job *job = read_query(c, w, &fault);

	if (!job) {
		connection_error(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	if (job->drop)
		log_client(c->uid, LOG_NOTE, "uid %u (pid %d) drops dataset %s from the cache",
			(unsigned)c->uid, (int)c->pid, job->row[1].dataset->config->name);
	job->job.serial = wire_number(w, WIRE_SERIAL);
	state_give(&c->control->cache_jobs, c, &job->job);
}
