/* tokctl inspect: prints what shards contain. */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/dataset.h"
#include "daemon/catalog/manifest.h"
#include "daemon/config/url_text.h"
#include "proto/phrases.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the datasets of the config ---- */

/* Is @path below the dataset's root? Sets *@name to the rest. */
static bool is_below(const struct listed *l, const char *path, const char **name)
{
	size_t n = strlen(l->root);

	n -= l->root[n - 1] == '/';
	*name = path + n + 1;
	return strncmp(path, l->root, n) == 0 && path[n] == '/';
}

struct listed *inspect_listed(const struct inspect *in, const char *path, int64_t *shard)
{
	struct listed *found = NULL;
	const char *name;

	for (unsigned i = 0; i < in->lists; i++) {
		struct listed *l = &in->listed[i];
		bool below = is_below(l, path, &name);
		int64_t number = below ? shard_list_find(&l->list, name) : -1;

		if ((number < 0 && !(below && l->unlisted)) || (found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
		if (l->dataset->label_mask)
			break;
	}
	return found;
}

static bool list_dataset(struct inspect *in, const struct config_stream *stream,
	const struct config_dataset *dataset)
{
	struct listed *l = &in->listed[in->lists];
	char path[PATH_MAX];
	struct fault fault;

	l->stream = stream;
	l->dataset = dataset;
	if (dataset->manifest && !in->manifest) { /* otherwise it may be the one to be written */
		if (!dataset_manifest(in->input.config, in->input.stores, stream, dataset,
			    &l->manifest, &fault))
			return ctl_error("%s", fault.text);
		l->list = l->manifest.list;
	} else if (url_text_is(dataset->path)) {
		/* Without its slash, as other roots. */
		l->list.root = strndup(dataset->path, strlen(dataset->path) - 1);
		l->unlisted = true;
	} else if (!config_path(in->input.config, dataset->path, path, sizeof(path))) {
		return ctl_error("%s:%d: path: %s", in->input.config->path, dataset->path_line,
			strerror(ENAMETOOLONG));
	} else if (!shard_list_read(&l->list, path, &fault)) {
		return ctl_error(
			"%s:%d: path: %s", in->input.config->path, dataset->path_line, fault.text);
	}
	in->lists++;
	l->root = url_text_is(dataset->path) ? strdup(l->list.root) : realpath(l->list.root, NULL);
	return l->root || ctl_error("%s: %s", l->list.root, strerror(errno));
}

/* Lists the files of all datasets. False after an error. */
static bool list_datasets(struct inspect *in)
{
	const struct config *config = in->input.config;
	size_t datasets = 0;

	in->input.hint.budget_bytes = dataset_frames_budget(config);
	for (uint32_t i = 0; i < config->streams; i++)
		datasets += config->stream[i].datasets;
	in->listed = calloc(datasets + 1, sizeof(*in->listed));
	if (!in->listed)
		return ctl_error(PHRASE_MEMORY);
	for (uint32_t i = 0; i < config->streams; i++)
		for (uint32_t d = 0; d < config->stream[i].datasets; d++)
			if (!list_dataset(in, &config->stream[i], &config->stream[i].dataset[d]))
				return false;
	return true;
}

int inspect_begin(struct inspect *in, const struct ctl_arguments *a)
{
	int status = ctl_input_begin(&in->input, a);

	in->emit.json = ctl_given(a, INSPECT_JSON);
	in->deep = ctl_given(a, INSPECT_DEEP);
	in->input.hint.documents = in->input.hint.loss_mask = true;
	if (status == CTL_OK && in->input.config && !list_datasets(in))
		status = CTL_FAILED;
	return status;
}

int inspect_end(struct inspect *in, int status)
{
	if (status == CTL_OK)
		status = emit_end(&in->emit, in->faults ? CTL_FAILED : CTL_OK);
	for (unsigned i = 0; i < in->lists; i++) {
		in->listed[i].manifest.entry ? manifest_free(&in->listed[i].manifest)
					     : shard_list_free(&in->listed[i].list);
		free(in->listed[i].root);
		free(in->listed[i].first);
	}
	free(in->listed);
	ctl_input_end(&in->input);
	return status;
}

/* ---- paths ---- */

/* Lists the masks of the dataset that @path is in, if the config has them in a store. */
static bool list_masks(struct inspect *in, const char *path, struct fault *fault)
{
	for (unsigned i = 0; i < in->lists; i++) {
		const char *masks = in->listed[i].dataset->label_mask, *name;

		if (!masks || !url_text_is(masks) || !is_below(&in->listed[i], path, &name))
			continue;
		snprintf(in->masks_url, sizeof(in->masks_url), "%s%s", masks,
			bytes_ends_in(masks, "/") ? "" : "/");
		return ctl_place_open(
			       &in->masks, in->input.stores, in->masks_url, NULL, NULL, fault) ||
		       fault_prefix(fault, "%s: ", in->masks_url);
	}
	return true;
}

bool inspect_open(struct inspect *in, const char *path, const struct shard_list *names)
{
	struct fault fault;

	if (list_masks(in, path, &fault) &&
		ctl_place_open(&in->place, in->input.stores, path, names,
			in->masks.remote ? &in->masks : NULL, &fault))
		return true;
	inspect_unread(in, path, fault.text);
	inspect_close(in);
	return false;
}

void inspect_close(struct inspect *in)
{
	ctl_place_close(&in->place);
	ctl_place_close(&in->masks);
}

/* ---- the command line ---- */

static const struct ctl_option options[] = {
	[INSPECT_CONFIG] = {INSPECT_CONFIG_OPTION},
	[INSPECT_FORMAT] = {CTL_INPUT_FORMAT_OPTION},
	[INSPECT_DTYPE] = {CTL_INPUT_DTYPE_OPTION},
	[INSPECT_COLUMN] = {CTL_INPUT_COLUMN_OPTION},
	[INSPECT_DEEP] = {OPTION_FLAG(
		"deep", "read all tokens: find the largest, compare with vocab and manifest")},
	[INSPECT_JSON] = {CTL_JSON_OPTION},
};

static int inspect_all(struct inspect *in, const struct ctl_arguments *a)
{
	int status = inspect_begin(in, a);
	int n = status == CTL_OK ? ctl_input_paths(a->argument, a->arguments) : 0;

	if (n < 0)
		return ctl_fail(PHRASE_MEMORY);
	for (int i = 0; i < n; i++)
		if (inspect_open(in, a->argument[i], NULL)) {
			inspect_place(in);
			inspect_close(in);
		}
	return status;
}

static int inspect(const struct ctl_arguments *a)
{
	struct inspect in = {.deep = false};

	for (int i = 0; i < a->arguments; i++)
		if (ctl_place_unlisted(a->argument[i]))
			return ctl_usage(a->command,
				"%s: an HTTPS server has no listing; see `tokctl manifest --from`",
				a->argument[i]);
	return inspect_end(&in, inspect_all(&in, a));
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.arguments = "PATH...",
	.help = "print what shards contain and what is wrong with them",
	.run = inspect,
	OPTIONS_ARE(options),
};
