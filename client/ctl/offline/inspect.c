/* tokctl inspect: prints what shards contain. */
#include "client/ctl/offline/inspect.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/commands.h"
#include "daemon/catalog/dataset.h"
#include "daemon/catalog/dataset_manifest.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/frames.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FRAMES_BYTES = 64 << 20 /* of decoded zstd frames */ };

/* ---- the datasets of the config ---- */

struct listed *inspect_listed(const struct inspect *in, const char *path, int64_t *shard)
{
	struct listed *found = NULL;

	for (unsigned i = 0; i < in->lists; i++) {
		struct listed *l = &in->listed[i];

		assert(l->root);
		size_t n = strlen(l->root);

		n -= l->root[n - 1] == '/';
		bool below = strncmp(path, l->root, n) == 0 && path[n] == '/';
		int64_t number = below ? shard_list_find(&l->list, path + n + 1) : -1;

		if ((number < 0 && !(below && l->unlisted)) || (found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
		if (l->dataset->label_mask)
			break;
	}
	return found;
}

static bool list_dataset(struct inspect *in, bool manifests, const struct config_stream *stream,
	const struct config_dataset *dataset)
{
	struct listed *l = &in->listed[in->lists];
	char path[PATH_MAX];
	struct fault fault;

	l->stream = stream;
	l->dataset = dataset;
	if (dataset->manifest && manifests) {
		if (!dataset_manifest(
			    in->config, in->stores, stream, dataset, &l->manifest, &fault)) {
			ctl_fail("%s", fault.text);
			return false;
		}
		l->list = l->manifest.list;
	} else if (url_text_is(dataset->path)) {
		/* Without its slash, as other roots. */
		l->list.root = strndup(dataset->path, strlen(dataset->path) - 1);
		l->unlisted = true;
	} else if (!config_path(in->config, dataset->path, path, sizeof(path))) {
		ctl_fail("%s:%d: path: %s", in->config->path, dataset->path_line,
			strerror(ENAMETOOLONG));
		return false;
	} else if (!shard_list_read(&l->list, path, &fault)) {
		ctl_fail("%s:%d: path: %s", in->config->path, dataset->path_line, fault.text);
		return false;
	}
	in->lists++;
	l->root = url_text_is(dataset->path) ? strdup(l->list.root) : realpath(l->list.root, NULL);
	if (!l->root)
		ctl_fail("%s: %s", l->list.root, strerror(errno));
	return l->root;
}

/* Lists the files of all datasets. @manifests: of datasets with a manifest, the files that it
 * lists. @stores: they are needed. False after an error. */
static bool open_config(struct inspect *in, const char *path, bool manifests, bool stores)
{
	struct fault fault;
	size_t datasets = 0;

	in->config = path ? config_load(path, &fault) : NULL;
	bool fine = in->config || !path;

	if (fine && (stores || (path && ctl_stores_needed(in->config, NULL)))) {
		in->stores = ctl_stores_open(in->config, &fault);
		fine = in->stores;
	}
	if (!fine)
		ctl_fail("%s", fault.text);
	if (!fine || !path)
		return fine;
	in->input.hint.budget_bytes = dataset_frames_budget(in->config);
	for (uint32_t i = 0; i < in->config->streams; i++)
		datasets += in->config->stream[i].datasets;
	in->listed = calloc(datasets + 1, sizeof(*in->listed));
	if (!in->listed) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	for (uint32_t i = 0; i < in->config->streams; i++)
		for (uint32_t d = 0; d < in->config->stream[i].datasets; d++)
			if (!list_dataset(in, manifests, &in->config->stream[i],
				    &in->config->stream[i].dataset[d]))
				return false;
	return true;
}

static void close_config(struct inspect *in)
{
	for (unsigned i = 0; i < in->lists; i++) {
		in->listed[i].manifest.types ? manifest_free(&in->listed[i].manifest)
					     : shard_list_free(&in->listed[i].list);
		free(in->listed[i].root);
		free(in->listed[i].first);
	}
	free(in->listed);
	store_close(in->stores);
	config_free(in->config);
}

/* ---- paths ---- */

/* Lists the masks of the dataset that the URL is in, if the config has one in a store. */
static bool list_masks(struct inspect *in, const char *url, struct fault *fault)
{
	const struct listed *l = inspect_listed(in, url, &(int64_t){0});
	const char *written = l ? l->dataset->label_mask : NULL;
	size_t n = written ? strlen(written) : 0;
	char *whole = NULL;
	bool fine;

	in->has_masks = false;
	if (!written || !url_text_is(url) || !url_text_is(written))
		return true;
	if (asprintf(&whole, "%s%s", written, written[n - 1] == '/' ? "" : "/") < 0)
		return fault_memory(fault);
	fine = ctl_listing_open(&in->masks, in->stores, whole, NULL, fault) ||
	       fault_prefix(fault, "%s: ", whole);
	in->has_masks = fine;
	free(whole);
	return fine;
}

/* A shard, or all shards of a directory, pattern or prefix. @from: see inspect_from(). */
static void inspect_path(struct inspect *in, const char *path, const char *from)
{
	struct fault fault;

	if (!list_masks(in, path, &fault)) {
		inspect_unread(in, path, fault.text);
		return;
	}
	if (from) {
		inspect_from(in, from, path);
	} else if (ctl_place_open(&in->place, in->stores, path, NULL,
			   in->has_masks ? &in->masks : NULL, &fault)) {
		inspect_place(in);
		ctl_place_close(&in->place);
	} else {
		inspect_unread(in, path, fault.text);
	}
	if (in->has_masks)
		ctl_listing_close(&in->masks);
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

static int inspect_all(
	struct inspect *in, char **path, int n, const char *manifest, const char *from)
{
	struct ctl_manifest written = {.last = ""};

	if (manifest) {
		if (!ctl_file_begin(&written.file, manifest))
			return CTL_FAILED;
		in->manifest = &written;
		in->deep |= !url_text_is(path[0]); /* for the digests: files have no ETag */
	}
	in->input.hint.documents = in->input.hint.loss_mask = true;
	in->input.hint.frames = frames_new(FRAMES_BYTES);
	for (int i = 0; i < n; i++)
		inspect_path(in, path[i], from);
	frames_free(in->input.hint.frames);
	cache_free(in->place.cache);
	int status = emit_end(&in->emit, in->faults ? CTL_FAILED : CTL_OK);

	if (manifest && in->faults)
		ctl_fail("%s: not written because of the problems above", manifest);
	if (manifest && !ctl_file_end(&written.file, !in->faults))
		status = CTL_FAILED;
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, FORMAT, DTYPE, COLUMN, MANIFEST, FROM, DEEP, JSON };

static const struct ctl_option options[] = {
	[CONFIG] =
		{OPTION_TEXT("config", "FILE",
			 "config whose datasets say how to read their shards; also counts windows"),
			.letter = 'c'},
	[FORMAT] = CTL_INPUT_FORMAT_OPTION,
	[DTYPE] = CTL_INPUT_DTYPE_OPTION,
	[COLUMN] = CTL_INPUT_COLUMN_OPTION,
	[MANIFEST] = {OPTION_TEXT("manifest", "FILE",
		"write a manifest of the shards to this file; implies --deep, except for "
		"shards in a store")},
	[FROM] = {OPTION_TEXT("from", "FILE",
		"read no shard: take all but sizes and ETags from this manifest, made "
		"before the shards were uploaded; for --manifest; with --deep, read all "
		"shards, and compare their digests with it")},
	[DEEP] = {OPTION_FLAG(
		"deep", "read all tokens: find the largest, compare with vocab and manifest")},
	[JSON] = CTL_JSON_OPTION,
};

/* Checks the paths that are URLs. *@any: some are. */
static int check_urls(const struct ctl_arguments *a, bool *any)
{
	const struct ctl_command *c = a->command;
	bool from = ctl_given(a, FROM);

	*any = false;
	for (int i = 0; i < a->arguments; i++) {
		const char *path = a->argument[i];

		if (url_text_is(path) && !from && ctl_listing_none(path))
			return ctl_usage(c,
				"%s: an HTTPS server has no listing; give --manifest FILE --from "
				"LOCAL, a manifest of the same shards on a disk",
				path);
		*any |= url_text_is(path);
	}
	if (from &&
		(!*any || a->arguments > 1 || a->argument[0][strlen(a->argument[0]) - 1] != '/'))
		return ctl_usage(c, "--from needs one URL that ends in '/'");
	if (*any && ctl_given(a, MANIFEST) && a->arguments > 1)
		return ctl_usage(c, "--manifest needs one URL, a prefix that ends in '/'");
	return CTL_OK;
}

static int inspect_arguments(struct inspect *in, const struct ctl_arguments *a)
{
	const char *manifest = ctl_text(a, MANIFEST);
	int n;
	bool urls;

	if (!ctl_input_options(&in->input, a, FORMAT, DTYPE, COLUMN))
		return CTL_USAGE;
	if (manifest && url_text_is(manifest))
		return ctl_usage(a->command,
			"--manifest %s: is a URL, but only files are written; write it to a file, "
			"and copy that with `aws s3 cp` or s5cmd",
			manifest);
	if (!manifest && ctl_given(a, FROM))
		return ctl_usage(a->command, "--from needs --manifest");
	if (check_urls(a, &urls) != CTL_OK)
		return CTL_USAGE;
	n = ctl_input_paths(a->argument, a->arguments);
	if (n < 0)
		return ctl_fail(PHRASE_MEMORY);
	if (manifest && !urls && !one_directory(a->argument, n))
		return ctl_usage(a->command, "--manifest: the shards are not in one directory; "
					     "give one directory, or files in it");
	if (manifest)
		qsort(a->argument, (size_t)n, sizeof(*a->argument), by_last_part);
	return open_config(in, ctl_text(a, CONFIG), !manifest, urls)
		       ? inspect_all(in, a->argument, n, manifest, ctl_text(a, FROM))
		       : CTL_FAILED;
}

static int inspect(const struct ctl_arguments *a)
{
	struct inspect *in = calloc(1, sizeof(*in));
	int status;

	if (!in)
		return ctl_fail(PHRASE_MEMORY);
	in->deep = ctl_given(a, DEEP);
	in->emit.json = ctl_given(a, JSON);
	status = inspect_arguments(in, a);
	close_config(in);
	free(in);
	return status;
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.arguments = "PATH...",
	.help = "print what shards contain and what is wrong with them",
	.run = inspect,
	OPTIONS_ARE(options),
};
