/* One entry of a stream's `datasets:`. */
#include "daemon/config/dataset_keys.h"

#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

static const char LABEL_RIGHT[] = "a name of 1 to 64 bytes, no control characters";

static bool take_label(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *name = schema_scalar(s, value, line, key->right);
	char shown[64];

	if (!name)
		return false;
	if (!wire_label_ok(name))
		return schema_refuse(s, line, "'%s' is no name; must be %s",
			schema_show(name, shown), key->right);
	memcpy(to, name, strlen(name) + 1);
	return true;
}

static bool take_dtype(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	unsigned choice;

	if (!schema_choice(s, key, value, line, &choice))
		return false;
	*(uint32_t *)to = choice == 0 ? 2 : 4;
	return true;
}

enum {
	DATASET_NAME,
	DATASET_PATH,
	DATASET_MANIFEST,
	DATASET_FORMAT,
	DATASET_DTYPE,
	DATASET_WEIGHT,
	DATASET_MAX_EPOCHS,
	DATASET_SHUFFLE,
	DATASET_BLOCK,
	DATASET_GROUP,
	DATASET_SLIDE,
	DATASET_COLUMN,
	DATASET_LABEL_MASK,
};

static const char *const dtypes[] = {"u16", "u32", NULL};
static const char *const shuffles[] = {
	[ORDER_NONE] = "none", [ORDER_GLOBAL] = "global", [ORDER_BLOCK] = "block", NULL};

static const struct schema_key dataset_keys[] = {
	[DATASET_NAME] = {"name", take_label, offsetof(struct config_dataset, name),
		.right = LABEL_RIGHT, .required = true},
	[DATASET_PATH] = {"path", schema_text, offsetof(struct config_dataset, path),
		.right = "a file, a directory or a glob", .required = true},
	[DATASET_MANIFEST] = {"manifest", schema_text, offsetof(struct config_dataset, manifest),
		.right = "a file that `tokctl inspect --manifest` wrote"},
	[DATASET_FORMAT] = {"format", schema_text, offsetof(struct config_dataset, format),
		.right = "auto or a format's name"},
	[DATASET_DTYPE] = {"dtype", take_dtype, offsetof(struct config_dataset, token_bytes),
		.right = "u16 or u32", .choices = dtypes},
	[DATASET_WEIGHT] = {"weight", schema_real, offsetof(struct config_dataset, weight),
		.right = CONFIG_WEIGHT_RIGHT},
	[DATASET_MAX_EPOCHS] = {"max_epochs", schema_number,
		offsetof(struct config_dataset, max_epochs), .min = 1, .max = UINT64_MAX},
	[DATASET_SHUFFLE] = {"shuffle", schema_choice, offsetof(struct config_dataset, shuffle),
		.right = "global, block or none", .choices = shuffles},
	[DATASET_BLOCK] = {"block", schema_number32, offsetof(struct config_dataset, block),
		.min = 1, .max = UINT64_C(1) << 31},
	[DATASET_GROUP] = {"group", schema_number32, offsetof(struct config_dataset, group),
		.min = 1, .max = UINT64_C(1) << 31},
	[DATASET_SLIDE] = {"slide", schema_flag, offsetof(struct config_dataset, slide),
		.right = "true or false"},
	[DATASET_COLUMN] = {"column", schema_text, offsetof(struct config_dataset, column),
		.right = "a column's name"},
	[DATASET_LABEL_MASK] = {"label_mask", schema_text,
		offsetof(struct config_dataset, label_mask),
		.right = "a directory of loss masks under the names of the shards"},
};

_Static_assert(
	sizeof(enum order_shuffle) == sizeof(unsigned), "schema_choice() writes an unsigned");

static bool take_dataset(struct schema *s, yaml_node_t *node, struct config_dataset *d)
{
	int lines[SCHEMA_COUNT(dataset_keys)], line = (int)node->start_mark.line + 1;

	*d = (struct config_dataset){
		.token_bytes = 2,
		.weight = 1,
		.shuffle = ORDER_GLOBAL,
		.block = 64,
		.group = 64,
		.line = line,
	};
	d->format = strdup("auto");
	if (!d->format)
		return schema_refuse_memory(s, line);
	if (!schema_mapping(s, node, line, dataset_keys, SCHEMA_COUNT(dataset_keys), d, lines))
		return false;
	d->path_line = lines[DATASET_PATH];
	d->manifest_line = lines[DATASET_MANIFEST];
	d->has_dtype = lines[DATASET_DTYPE] != 0;
	d->has_weight = lines[DATASET_WEIGHT] != 0;
	d->weight_line = d->has_weight ? lines[DATASET_WEIGHT] : line;
	d->format_line = lines[DATASET_FORMAT] ? lines[DATASET_FORMAT] : line;
	d->max_epochs_line = lines[DATASET_MAX_EPOCHS] ? lines[DATASET_MAX_EPOCHS] : line;
	d->slide_line = lines[DATASET_SLIDE] ? lines[DATASET_SLIDE] : line;
	d->label_mask_line = lines[DATASET_LABEL_MASK];
	return true;
}

bool datasets_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config_stream *stream = to;

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, key->right))
		return false;
	size_t n = (size_t)(value->data.sequence.items.top - value->data.sequence.items.start);

	if (n == 0 || n > LIMIT_DATASETS)
		return schema_refuse(
			s, line, "has %zu datasets; must have 1 to %d", n, LIMIT_DATASETS);
	stream->dataset = calloc(n, sizeof(*stream->dataset));
	if (!stream->dataset)
		return schema_refuse_memory(s, line);
	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		struct config_dataset *d = &stream->dataset[i];
		size_t field = schema_enter_item(s, i);

		stream->datasets = (uint32_t)i + 1;
		if (!take_dataset(s, node, d))
			return false;
		for (size_t j = 0; j < i; j++) {
			if (strcmp(stream->dataset[j].name, d->name) == 0) {
				schema_enter(s, ".name");
				return schema_refuse(s, d->line,
					"'%s' is taken by the dataset on line %d; must be another "
					"name",
					d->name, stream->dataset[j].line);
			}
		}
		schema_leave(s, field);
	}
	return true;
}
