/*
 * tokctl inspect: prints what shards contain. Facts that a file does not state (dtype, format) are
 * taken from the options, then from the config's dataset that lists it, then from the defaults.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/input.h"
#include "client/ctl/offline/inspect_listed.h"
#include "client/ctl/offline/inspect_report.h"
#include "client/ctl/offline/manifest.h"
#include "client/ctl/offline/scan.h"
#include "daemon/catalog/dataset.h"
#include "daemon/config/config.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/frames.h"
#include "daemon/shard/sample.h"
#include "proto/phrases.h"
#include "proto/table.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SAMPLED_MOST = 64,
	FRAMES_BYTES = 64 << 20, /* of decoded zstd frames */
};

struct inspect {
	struct ctl_out out;
	struct ctl_input input;
	bool json, deep, faults;
	uint64_t sampled;	       /* flat shards seen, of which the first ones were sampled */
	struct ctl_manifest *manifest; /* or NULL */
	struct cache *cache;	       /* of the last directory; NULL: none yet */
	const char *first;	       /* the first shard of the dataset or path */
	const struct shard_format *first_format; /* its format; NULL: no shard yet */
	const struct listed *first_in;		 /* its dataset; NULL: the path itself */
	bool mixed;				 /* a shard of another format was reported */
	struct ctl_progress progress;
	bool alone; /* the path has one shard */
	struct listed_all all;
};

static void print(struct inspect *in, const struct report *r)
{
	in->faults |= r->problems > 0;
	(in->json ? report_put_json : report_put_text)(&in->out, r);
}

/* Reports a path that could not be listed or read. */
static void print_unread(struct inspect *in, const char *path, const char *text)
{
	struct report *r = calloc(1, sizeof(*r));

	in->faults = true;
	if (!r) {
		ctl_fail("%s: %s", path, PHRASE_MEMORY);
		return;
	}
	r->path = path;
	report_problem(r, "%s", text);
	print(in, r);
	free(r);
}

/* ---- one file ---- */

/* Counts the windows that the stream cuts from the shard, and the tokens in none of them. */
static void count_windows(struct report *r, const struct config_stream *stream)
{
	uint64_t first_window[2], tokens = r->facts.tokens;
	struct table table = {.window_tokens = stream->seq_len + stream->extra,
		.stride = stream->stride,
		.shards = 1,
		.tokens = &tokens,
		.first_window = first_window};

	if (r->facts.sample_tokens > 0) { /* each sample is a window */
		if (r->facts.sample_tokens != table.window_tokens)
			report_problem(r,
				"its samples have %" PRIu64 " tokens, but a window of stream %s "
				"has %" PRIu64 " (seq_len + extra); must be equal",
				r->facts.sample_tokens, stream->name, table.window_tokens);
		table.window_tokens = table.stride = r->facts.sample_tokens;
	}
	table_number(&table);
	r->stream = stream;
	r->windows = table.windows;
	r->unserved = table_unserved(&table);
}

/* Reads all tokens. */
static void scan(struct inspect *in, struct report *r, const struct shard *shard, bool digests,
	uint64_t *digest)
{
	bool has_vocab = r->stream && r->stream->has_vocab;
	struct ctl_scan scan = {.shard = shard,
		.piece_tokens = CTL_DIGEST_TOKENS,
		.vocab = has_vocab ? r->stream->vocab : 0,
		.digests = digests,
		.masks = r->has_mask,
		.progress = &in->progress};

	ctl_progress_begin(&in->progress, r->path, shard->facts.tokens * shard->facts.token_bytes);
	bool fine = ctl_scan(&scan);

	ctl_progress_end(&in->progress);
	r->scanned = true;
	r->most = scan.most;
	r->masked = scan.masked;
	*digest = scan.digest;
	if (!fine)
		report_problem(r, "%s", PHRASE_MEMORY);
	if (scan.failures == 1)
		report_problem(r, "%s", scan.failed.text);
	else if (scan.failures > 1)
		report_problem(r, "%s (the first of %" PRIu64 " failed reads)", scan.failed.text,
			scan.failures);
	if (has_vocab && scan.beyond != SHARD_UNKNOWN)
		report_problem(r,
			"token %" PRIu64 " is %" PRIu64 "; must be below the vocab of stream %s, "
			"%" PRIu64,
			scan.beyond, scan.beyond_value, r->stream->name, r->stream->vocab);
}

/* In a stream with loss_mask, either all shards of a dataset have a mask or none has; likewise
 * lists of document bounds. */
static void compare_annotations(struct report *r, struct listed *l)
{
	bool mask = r->facts.mask, bounds = r->facts.bounds;

	if (!l->first) {
		l->first = strdup(r->path);
		l->mask = mask;
		l->bounds = bounds;
	}
	if (l->mask != mask)
		report_problem(r, "has %s loss mask, but %s has %s; " PHRASE_ALL_OR_NONE,
			mask ? "a" : "no", l->first ? l->first : "another", mask ? "none" : "one");
	if (l->bounds != bounds)
		report_problem(r,
			"has %s list of document bounds (.csv.gz), but %s has "
			"%s; " PHRASE_ALL_OR_NONE,
			bounds ? "a" : "no", l->first ? l->first : "another",
			bounds ? "none" : "one");
}

static void add_to_manifest(
	struct inspect *in, struct report *r, const char *name, uint64_t size, uint64_t digest)
{
	struct fault fault;

	if (!ctl_manifest_add(in->manifest, name, r->format, &r->facts, size, digest, &fault))
		report_problem(r, "%s", fault.text);
}

/* Compares with the config's manifest; the digest only if it was computed. */
static void compare(
	struct report *r, const struct manifest *m, int64_t s, uint64_t size, uint64_t digest)
{
	const struct manifest_shard listed = {m->format, (enum shard_type)m->types[s], m->tokens[s],
		m->sizes[s], m->sample_tokens, m->frame_bytes};
	const struct manifest_shard found = {shard_format(r->format), r->facts.type,
		r->facts.tokens, size, r->facts.sample_tokens, r->facts.frame_bytes};
	struct fault fault;

	if (!manifest_same(&listed, &found, &fault))
		report_problem(r, "%s", fault.text);
	else if (r->scanned && r->problems == 0 && digest != m->digests[s])
		report_problem(r,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the file; restore the shard, or write the manifest anew",
			m->digests[s], digest);
}

/* A dataset has one format; so must the shards of a path. Reports the first shard that differs. */
static void check_format(struct inspect *in, struct report *r, const struct listed *listed,
	const struct shard_format *format, const char *name)
{
	if (!in->first_format || in->first_in != listed) {
		in->first = name;
		in->first_format = format;
		in->first_in = listed;
		in->mixed = false;
	}
	if (format == in->first_format || in->mixed)
		return;
	in->mixed = true;
	if (format == &shard_flat)
		report_problem(r,
			PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put "
					   "it into a dataset of its own",
			in->first, in->first_format->name);
	else if (in->first_format == &shard_flat)
		report_problem(r,
			"is %s, but the format of another shard, %s, is unknown: its index is lost "
			"or its header is damaged; restore that, or, if it contains plain tokens, "
			"put it into a dataset of its own",
			format->name, in->first);
	else
		report_problem(r, "is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT,
			format->name, in->first, in->first_format->name);
}

/* Reports a dtype that does not fit the tokens of a flat shard: a problem if the dtype was not
 * given, otherwise a note. */
static void check_looks(
	struct inspect *in, struct report *r, const struct shard *shard, bool is_said)
{
	const char *looks;

	/* A sample is 64 KiB. Like the daemon at start, it looks only at some of a million shards.
	 */
	if (shard->format != &shard_flat || (!in->deep && in->sampled++ >= SAMPLED_MOST))
		return;
	looks = sample_shard(shard);
	if (looks && !is_said)
		report_problem(r, "%s", looks);
	else if (looks)
		snprintf(r->facts.note, sizeof(r->facts.note), "%.*s", (int)strcspn(looks, ";"),
			looks);
}

/* How to read the file: by the options, then by the dataset that lists it. */
static struct ctl_input input_of(
	const struct inspect *in, const char *path, const struct listed *listed)
{
	struct ctl_input input = in->input;

	input.hint.cache = in->cache;
	if (listed && !input.format)
		input.format = shard_format(listed->dataset->format);
	if (listed && !input.hint.has_type)
		input.hint.type = !listed->dataset->has_dtype && listed->manifest.types
					  ? (enum shard_type)listed->manifest.types[0]
				  : listed->dataset->token_bytes == 4 ? SHARD_U32
								      : SHARD_U16;
	input.hint.has_type |= listed && listed->dataset->has_dtype;
	if (listed && !input.hint.column)
		input.hint.column = listed->dataset->column;
	if (listed)
		input.hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (in->all.config && !listed)
		ctl_note("%s: in no dataset of %s; read as %s", path, in->all.config->path,
			shard_type_name(input.hint.type));
	return input;
}

/*
 * Sets the hint's label_mask, and @path to the name of the shard in its dataset. The shard must be
 * opened by that name, because its mask has the same one. False: a name is too long.
 */
static bool find_mask(const struct inspect *in, const struct listed *listed, int64_t number,
	struct ctl_input *input, char *mask, char *path)
{
	if (!config_path(in->all.config, listed->dataset->label_mask, mask, PATH_MAX) ||
		!shard_list_path(&listed->list, (uint64_t)number, path, PATH_MAX))
		return false;
	for (size_t n = strlen(mask); n > 1 && mask[n - 1] == '/'; n--)
		mask[n - 1] = 0;
	input->hint.label_mask = mask;
	input->name = shard_list_name(&listed->list, (uint64_t)number);
	return true;
}

/* @absolute: the same file as @path, to find its dataset; @name: its name in a manifest. */
static void inspect_file(
	struct inspect *in, const char *path, const char *absolute, const char *name)
{
	int64_t number;
	struct listed *listed = listed_find(&in->all, absolute, &number);
	const struct manifest *manifest =
		listed && listed->manifest.types ? &listed->manifest : NULL;
	struct ctl_input input = input_of(in, path, listed);
	struct report *r = calloc(1, sizeof(*r));
	char mask[PATH_MAX], by[PATH_MAX];
	struct fault fault;
	bool masked = listed && listed->dataset->label_mask;
	uint64_t digest = 0;
	struct stat st;
	int fd;

	if (!r || (masked && !find_mask(in, listed, number, &input, mask, by))) {
		print_unread(in, path, r ? strerror(ENAMETOOLONG) : PHRASE_MEMORY);
		free(r);
		return;
	}
	struct shard *shard = ctl_input_open(&input, masked ? by : path, &fd, &fault);

	r->path = path;
	if (shard) {
		r->format = shard->format->name;
		r->facts = shard->facts;
		check_format(in, r, listed, shard->format, name);
		if (listed)
			count_windows(r, listed->stream);
		if (listed && listed->stream->loss_mask)
			compare_annotations(r, listed);
		r->has_mask = shard->mask || (shard->bounds && bounds_outside(shard->bounds) > 0);
		/* An empty file among others is a shard without windows. A single one without a
		 * header was probably never written. */
		if (in->alone && r->facts.tokens == 0 && shard->format == &shard_flat)
			report_problem(r, "its size is 0 bytes%s; write it again",
				shard->bytes->plain ? "" : " after decoding");
		check_looks(in, r, shard, input.hint.has_type);
		if (in->deep)
			scan(in, r, shard, in->manifest || manifest, &digest);
		if (fstat(fd, &st) != 0)
			report_problem(r, "%s", strerror(errno));
		else if (manifest)
			compare(r, manifest, number, (uint64_t)st.st_size, digest);
		if (in->manifest && r->problems == 0)
			add_to_manifest(in, r, name, (uint64_t)st.st_size, digest);
	} else {
		report_problem(r, "%s", fault.text);
	}
	print(in, r);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	free(r);
}

/* @name in the list's directory, whose links are resolved. NULL: that failed. */
static char *resolve(const char *name, const struct shard_list *list)
{
	char *root = realpath(list->root, NULL), *whole = NULL;

	if (root && asprintf(&whole, "%s/%s", strcmp(root, "/") == 0 ? "" : root, name) < 0)
		whole = NULL;
	free(root);
	return whole;
}

/* Keeps the cache while the directory stays the same: files named one by one share an index. False:
 * out of memory. */
static bool use_cache(struct inspect *in, const char *root)
{
	if (in->cache && strcmp(cache_root(in->cache), root) == 0)
		return true;
	cache_free(in->cache);
	in->cache = cache_new(root);
	return in->cache;
}

/* A file, or all files below a directory. */
static void inspect_path(struct inspect *in, const char *path)
{
	char file[PATH_MAX + 1];
	struct fault fault;
	struct shard_list list;
	size_t prefix;

	in->first_format = NULL;
	if (!ctl_input_list(&list, path, &prefix, &fault)) {
		print_unread(in, path, fault.text);
		return;
	}
	if (!use_cache(in, list.root)) {
		print_unread(in, path, PHRASE_MEMORY);
		shard_list_free(&list);
		return;
	}
	in->alone = list.count == 1;
	for (uint64_t i = 0; i < list.count && !in->out.failed; i++) {
		const char *name = shard_list_name(&list, i);
		char *resolved = resolve(name, &list);

		ctl_input_name(&list, i, path, prefix, file, sizeof(file));
		inspect_file(in, file, resolved ? resolved : file, name);
		free(resolved);
	}
	shard_list_free(&list);
}

static int by_last_part(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b, *p = strrchr(x, '/'),
		   *q = strrchr(y, '/');

	return strcmp(p ? p + 1 : x, q ? q + 1 : y);
}

/* Are the paths in one directory, so that a manifest can name them relative to it? */
static bool one_directory(char **path, int n)
{
	char *root = NULL;
	bool same = true;

	for (int i = 0; i < n && same; i++) {
		char *here = ctl_input_real(path[i]), *slash = here ? strrchr(here, '/') : NULL;
		struct stat st;

		if (here && stat(here, &st) == 0 && !S_ISDIR(st.st_mode) && slash)
			*slash = 0;
		same = !here || !root || strcmp(here, root) == 0;
		if (root)
			free(here);
		else
			root = here;
	}
	free(root);
	return same;
}

static int inspect_all(struct inspect *in, char **path, int n, const char *manifest)
{
	if (manifest) {
		in->manifest = ctl_manifest_begin(manifest);
		if (!in->manifest)
			return CTL_FAILED;
		in->deep = true; /* for the digests */
	}
	if (in->all.config)
		in->input.hint.budget_bytes = dataset_frames_budget(in->all.config);
	in->input.hint.documents = in->input.hint.loss_mask = true;
	in->input.hint.frames = frames_new(FRAMES_BYTES);
	for (int i = 0; i < n; i++)
		inspect_path(in, path[i]);
	frames_free(in->input.hint.frames);
	cache_free(in->cache);
	int status = ctl_finish(&in->out, in->faults ? CTL_FAILED : CTL_OK);

	if (manifest && in->faults)
		ctl_fail("%s: not written because of the problems above", manifest);
	if (manifest && !ctl_manifest_end(in->manifest, !in->faults))
		status = CTL_FAILED;
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, FORMAT, DTYPE, COLUMN, MANIFEST, DEEP, JSON };

static const struct ctl_option options[] = {
	[CONFIG] = {.name = "config",
		.letter = 'c',
		.value = "FILE",
		.help = "config whose datasets say how to read their shards; also counts windows"},
	[FORMAT] = CTL_INPUT_FORMAT_OPTION,
	[DTYPE] = CTL_INPUT_DTYPE_OPTION,
	[COLUMN] = CTL_INPUT_COLUMN_OPTION,
	[MANIFEST] = {.name = "manifest",
		.value = "FILE",
		.help = "write a manifest of the shards to this file; implies --deep"},
	[DEEP] = {.name = "deep",
		.kind = CTL_FLAG,
		.help = "read all tokens: find the largest, compare with vocab and manifest"},
	[JSON] = CTL_JSON_OPTION,
};

static int inspect_arguments(struct inspect *in, const struct ctl_arguments *a)
{
	const char *config = ctl_text(a, CONFIG), *manifest = ctl_text(a, MANIFEST);
	int status = CTL_FAILED, n;

	if (!ctl_input_options(&in->input, a->command, ctl_text(a, FORMAT), ctl_text(a, DTYPE),
		    ctl_text(a, COLUMN)))
		return CTL_USAGE;
	n = ctl_input_paths(a->argument, a->arguments);
	if (n < 0)
		return ctl_fail(PHRASE_MEMORY);
	if (manifest && !one_directory(a->argument, n))
		return ctl_usage(a->command, "--manifest: the shards are not in one directory; "
					     "give one directory, or files in it");
	if (manifest)
		qsort(a->argument, (size_t)n, sizeof(*a->argument), by_last_part);
	if (!config || listed_open(&in->all, config, !manifest))
		status = inspect_all(in, a->argument, n, manifest);
	listed_close(&in->all);
	return status;
}

static int inspect(const struct ctl_arguments *a)
{
	struct inspect *in = calloc(1, sizeof(*in));
	int status;

	if (!in)
		return ctl_fail(PHRASE_MEMORY);
	in->deep = ctl_given(a, DEEP);
	in->json = ctl_given(a, JSON);
	status = inspect_arguments(in, a);
	free(in);
	return status;
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.arguments = "PATH...",
	.least = 1,
	.most = CTL_ANY,
	.help = "print what shards contain and what is wrong with them",
	.about = "Prints one line per shard: format, dtype, number of tokens and of documents, and "
		 "any problem. PATH is a file, a directory or a pattern. With -c, shards are read "
		 "as the datasets of the config read them, and their windows are counted. With "
		 "--deep all tokens are read, and compared with the stream's vocab and with the "
		 "manifest's digests. The exit status is 1 if there is a problem.\n\n"
		 "--manifest writes a manifest, with which a daemon starts without opening each "
		 "shard: see the key manifest: in tokend.yaml(5).",
	.examples = CTL_EXAMPLES({"look at the shards of a dataset", "tokctl inspect data/web"},
		{"read all tokens, as the config's streams do",
			"tokctl inspect data/web -c tokend.yaml --deep"},
		{"write a manifest", "tokctl inspect data/web --manifest web.jsonl"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = inspect,
};
