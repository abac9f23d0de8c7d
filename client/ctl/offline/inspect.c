/*
 * tokctl inspect: prints what shards contain. Files are read one after another, and objects of a
 * store many at once.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/inspect_file.h"
#include "client/ctl/offline/inspect_objects.h"
#include "client/ctl/offline/stores.h"
#include "daemon/catalog/dataset.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/frames.h"
#include "daemon/store/sums.h"
#include "proto/phrases.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FRAMES_BYTES = 64 << 20 /* of decoded zstd frames */ };

static void inspect_file(
	struct inspect *in, const char *path, const char *absolute, const char *name)
{
	struct inspected *f = calloc(1, sizeof(*f));

	if (!f) {
		inspect_unread(in, path, PHRASE_MEMORY);
		return;
	}
	inspect_begin(in, f, path, absolute, name);
	inspect_read(in, f);
	inspect_end(in, f);
	free(f);
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

/* A file, or all files below a directory. @from: see inspect_from(). */
static void inspect_path(struct inspect *in, const char *path, const char *from)
{
	char file[PATH_MAX + 1];
	struct fault fault;
	struct shard_list list;
	size_t prefix;

	in->first_format = NULL;
	if (url_text_is(path)) {
		inspect_objects(in, path, from);
		return;
	}
	if (!ctl_input_list(&list, path, &prefix, &fault)) {
		inspect_unread(in, path, fault.text);
		return;
	}
	if (!use_cache(in, list.root)) {
		inspect_unread(in, path, PHRASE_MEMORY);
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

static int inspect_all(
	struct inspect *in, char **path, int n, const char *manifest, const char *from)
{
	if (manifest) {
		in->manifest = ctl_manifest_begin(manifest, in->sums_piece);
		if (!in->manifest)
			return CTL_FAILED;
		in->deep |= !url_text_is(path[0]); /* for the digests: files have no ETag */
	}
	if (in->all.config)
		in->input.hint.budget_bytes = dataset_frames_budget(in->all.config);
	in->input.hint.documents = in->input.hint.loss_mask = true;
	in->input.hint.frames = frames_new(FRAMES_BYTES);
	for (int i = 0; i < n; i++)
		inspect_path(in, path[i], from);
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

enum { CONFIG, FORMAT, DTYPE, COLUMN, MANIFEST, FROM, SUMS, PIECE, DEEP, JSON };

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
		.help = "write a manifest of the shards to this file; implies --deep, except for "
			"shards in a store"},
	[FROM] = {.name = "from",
		.value = "FILE",
		.help = "read no shard: take all but sizes and ETags from this manifest, made "
			"before the shards were uploaded; for --manifest; with --deep, read all "
			"shards, and compare their digests with it"},
	[SUMS] = {.name = "sums",
		.kind = CTL_FLAG,
		.help = "also write the sums of the pieces of the shards, next to the manifest; "
			"in piece mode the daemon compares pieces with them"},
	[PIECE] = {.name = "piece",
		.kind = CTL_NUMBER,
		.value = "BYTES",
		.least = SUMS_PIECE_LEAST,
		.most = SUMS_PIECE_MOST,
		.preset = "8388608",
		.help = "size of a piece for --sums, a power of two, as piece: in the config"},
	[DEEP] = {.name = "deep",
		.kind = CTL_FLAG,
		.help = "read all tokens: find the largest, compare with vocab and manifest"},
	[JSON] = CTL_JSON_OPTION,
};

/* Checks which options are given together. */
static int check_options(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	const char *manifest = ctl_text(a, MANIFEST);
	uint64_t piece = ctl_number(a, PIECE, 0);

	if (manifest && url_text_is(manifest))
		return ctl_usage(c,
			"--manifest %s: is a URL, but only files are written; write it to a file, "
			"and copy that with `aws s3 cp` or s5cmd",
			manifest);
	if (!manifest && (ctl_given(a, FROM) || ctl_given(a, SUMS)))
		return ctl_usage(c, "--from and --sums need --manifest");
	if (!ctl_given(a, SUMS) && ctl_given(a, PIECE))
		return ctl_usage(c, "--piece needs --sums");
	if ((piece & (piece - 1)) != 0)
		return ctl_usage(c, "--piece %s: must be a power of two", ctl_text(a, PIECE));
	return CTL_OK;
}

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
	const char *config = ctl_text(a, CONFIG), *manifest = ctl_text(a, MANIFEST);
	int status = CTL_FAILED, n;
	bool urls;

	if (!ctl_input_options(&in->input, a->command, ctl_text(a, FORMAT), ctl_text(a, DTYPE),
		    ctl_text(a, COLUMN)) ||
		check_options(a) != CTL_OK || check_urls(a, &urls) != CTL_OK)
		return CTL_USAGE;
	n = ctl_input_paths(a->argument, a->arguments);
	if (n < 0)
		return ctl_fail(PHRASE_MEMORY);
	if (manifest && !urls && !one_directory(a->argument, n))
		return ctl_usage(a->command, "--manifest: the shards are not in one directory; "
					     "give one directory, or files in it");
	if (manifest)
		qsort(a->argument, (size_t)n, sizeof(*a->argument), by_last_part);
	if (listed_open(&in->all, config, !manifest, urls)) {
		in->stores = in->all.stores;
		status = inspect_all(in, a->argument, n, manifest, ctl_text(a, FROM));
	}
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
	if (ctl_given(a, SUMS))
		in->sums_piece = (uint32_t)ctl_number(a, PIECE, 0);
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
		 "any problem. PATH is a file, a directory, a pattern, or a URL: the prefix of "
		 "shards in a store, or one shard. With -c, shards are read "
		 "as the datasets of the config read them, and their windows are counted. With "
		 "--deep all tokens are read, and compared with the stream's vocab and with the "
		 "manifest's digests. The exit status is 1 if there is a problem.\n\n"
		 "--manifest writes a manifest, with which a daemon starts without opening each "
		 "shard: see the key manifest: in tokend.yaml(5). For shards in a store it has "
		 "their ETags. If the shards were uploaded from a disk, --from copies the manifest "
		 "that was made there, so that no shard is read again. Objects of the same size "
		 "with "
		 "other contents are then not found; with --deep they are.",
	.examples = CTL_EXAMPLES({"look at the shards of a dataset", "tokctl inspect data/web"},
		{"read all tokens, as the config's streams do",
			"tokctl inspect data/web -c tokend.yaml --deep"},
		{"write a manifest", "tokctl inspect data/web --manifest web.jsonl"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = inspect,
};
