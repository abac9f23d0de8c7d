/* The stores of a config, its cache, and the URLs of its datasets. */
#include "daemon/config/schema.h"
#include "daemon/config/url_text.h"

#include <inttypes.h>
#include <string.h>

enum { STORES_MOST = 64, PIECES_LEAST = 64 };

/* ---- keys ---- */

static SCHEMA_TAKER(take_endpoint)
{
	const char *text = schema_scalar(s, value, key->right);
	char host[URL_ENDPOINT_BYTES];
	struct fault fault;
	bool tls;

	if (!text)
		return false;
	if (!url_text_endpoint(text, &tls, host, &fault))
		return schema_refuse(s, "%s", fault.text);
	return schema_text(s, key, value, to);
}

static const char *const styles[] = {
	[CONFIG_STYLE_AUTO] = "auto",
	[CONFIG_STYLE_VIRTUAL] = "virtual",
	[CONFIG_STYLE_PATH] = "path",
	NULL,
};
_Static_assert(sizeof(enum config_style) == sizeof(unsigned), "schema_choice() writes an unsigned");

static const struct schema_key store_keys[] = {
	{"endpoint", take_endpoint, offsetof(struct config_store, endpoint),
		.right = URL_ENDPOINT_RIGHT,
		.otherwise = "`$AWS_ENDPOINT_URL_S3`, `$AWS_ENDPOINT_URL`, the region's of AWS",
		.help = "The server, without a path."},
	{"region", schema_text, offsetof(struct config_store, region),
		.right = "a region, such as us-east-1",
		.otherwise = "`$AWS_REGION`, `$AWS_DEFAULT_REGION`, the profile's, us-east-1",
		.help = "The region in signatures and in AWS's host names."},
	{"style", schema_choice, offsetof(struct config_store, style), .choices = styles,
		.preset = "auto",
		.help = "Where requests name the bucket: in the host (`virtual`) or in the path "
			"(`path`). `auto` is `path` with an endpoint, otherwise `virtual`."},
	{"profile", schema_text, offsetof(struct config_store, profile),
		.right = "a section of ~/.aws/credentials or ~/.aws/config",
		.otherwise = "the first provider that has credentials",
		.help = "Use the credentials of this section of the shared AWS files and no "
			"others. At most one of profile, anonymous, token_file and query_file is "
			"set."},
	{"anonymous", schema_flag, offsetof(struct config_store, anonymous), .preset = "false",
		.help = "Send requests without credentials, for public data."},
	{"token_file", schema_path, offsetof(struct config_store, token_file),
		.right = "a file that contains a bearer token", .otherwise = "none",
		.help = "Send the token in this file with each request. Someone else renews it; "
			"it is read again when it changes."},
	{"query_file", schema_path, offsetof(struct config_store, query_file),
		.right = "a file that contains the query of a signed URL", .otherwise = "none",
		.help = "Append the query in this file to each URL, as for a shared access "
			"signature of Azure. It is read again when it changes."},
	{"requester_pays", schema_flag, offsetof(struct config_store, requester_pays),
		.preset = "false",
		.help = "Accept the costs of requests to buckets whose owner does not pay."},
	{"ca", schema_path, offsetof(struct config_store, ca),
		.right = "a PEM file of certificates", .otherwise = "the system's",
		.help = "Certificates that are trusted instead of the system's."},
	{"connections", schema_number32, offsetof(struct config_store, connections), .min = 1,
		.max = 4096, .unit = "connections", .preset = "128",
		.help = "The most GETs in flight. Fewer are used while the store is slow."},
};

const struct schema_table store_table = {store_keys, SCHEMA_COUNT(store_keys)};

static const struct schema_key cache_keys[] = {
	{"dir", schema_path, offsetof(struct config, cache_dir),
		.right = "a directory of a local disk", .required = true,
		.help = "The directory. It belongs to one daemon, which creates it."},
	{"size", schema_size, offsetof(struct config, cache_bytes),
		.right = "a size such as 500GiB or 2TiB, or a number of bytes", .required = true,
		.min = 1, .max = INT64_MAX, .help = "The most disk space that it uses."},
};

const struct schema_table cache_table = {cache_keys, SCHEMA_COUNT(cache_keys)};

/* ---- stores ---- */

/* Of the ways to get credentials, one. */
static bool check_ways(
	struct schema *s, const struct config_store *store, const struct schema_lines *lines)
{
	static const char *const ways[] = {"profile", "anonymous", "token_file", "query_file"};
	const char *first = NULL;

	for (size_t i = 0; i < SCHEMA_COUNT(ways); i++) {
		int line = schema_line(lines, ways[i]);

		if (!line || (strcmp(ways[i], "anonymous") == 0 && !store->anonymous))
			continue;
		if (first)
			return schema_refuse_key(s, line, ways[i],
				"the store also has %s (line %d); remove one of them", first,
				schema_line(lines, first));
		first = ways[i];
	}
	return true;
}

/* An entry for https:// is about all its servers. */
static bool check_https(
	struct schema *s, const struct config_store *store, const struct schema_lines *lines)
{
	static const char *const wrong[] = {
		"endpoint", "region", "style", "profile", "requester_pays"};

	for (size_t i = 0; strcmp(store->name, "https") == 0 && i < SCHEMA_COUNT(wrong); i++)
		if (schema_line(lines, wrong[i]))
			return schema_refuse_key(s, schema_line(lines, wrong[i]), wrong[i],
				"is not for https:// URLs, which name their server; remove it, or "
				"give the store another name");
	return true;
}

static bool take_store(struct schema *s, const char *name, yaml_node_t *value, void *to)
{
	struct config *config = to;
	struct config_store *store = &config->store[config->stores];
	struct schema_lines lines;
	char shown[64];

	if (!url_text_scheme_ok(name) || strcmp(name, "file") == 0 || strcmp(name, "http") == 0)
		return schema_refuse(s, "'%s' is not a store's name; must be %s",
			schema_show(name, shown), URL_SCHEME_RIGHT);
	strcpy(store->name, name);
	config->stores++;
	return schema_mapping(s, value, &store_table, store, &lines) &&
	       check_ways(s, store, &lines) && check_https(s, store, &lines);
}

SCHEMA_TAKER(stores_take)
{
	static const struct schema_entries stores = {.type = YAML_MAPPING_NODE,
		.right = "a mapping of names to stores, such as {lab: {endpoint: …}}",
		.name = URL_SCHEME_RIGHT,
		.what = "stores",
		.most = STORES_MOST,
		.bytes = sizeof(struct config_store),
		.take = take_store};
	struct config *config = to;

	(void)key;
	return schema_each(s, &stores, value, &config->store, config);
}

SCHEMA_TAKER(cache_take)
{
	struct config *config = to;
	struct schema_lines lines;

	(void)key;
	config->cache_line = s->line;
	return schema_mapping(s, value, &cache_table, config, &lines);
}

/* ---- datasets ---- */

/* Checks and splits a value that may be a URL. @prefix: of a directory, otherwise of an object. */
static bool check_url(struct schema *s, const char *key, const char *url, int line, bool prefix,
	struct url_text *parts)
{
	struct fault fault;
	size_t n = url ? strlen(url) : 0;

	if (!url || !url_text_is(url))
		return true;
	if (!url_text(s->config, url, parts, &fault))
		return schema_refuse_key(s, line, key, "%s", fault.text);
	if (prefix && strchr(url, '*'))
		return schema_refuse_key(s, line, key,
			"patterns are not for URLs, because the manifest lists the shards; must "
			"be %s://BUCKET/PREFIX/",
			parts->scheme);
	if (prefix && url[n - 1] != '/')
		return schema_refuse_key(
			s, line, key, "%.200s is not a prefix; write %.200s/", url, url);
	if (!prefix && (url[n - 1] == '/' || !*parts->key))
		return schema_refuse_key(s, line, key,
			"%.200s is not an object; must be %s://BUCKET/KEY", url, parts->scheme);
	return true;
}

/* The field is the dataset's. */
static bool check_dataset(struct schema *s, const struct config_dataset *d)
{
	bool remote = url_text_is(d->path);
	struct url_text mask, manifest, path = {0};

	if (!check_url(s, "label_mask", d->label_mask, d->label_mask_line, true, &mask) ||
		!check_url(s, "manifest", d->manifest, d->manifest_line, false, &manifest) ||
		!check_url(s, "path", d->path, d->path_line, true, &path))
		return false;
	if (!remote && d->fetch != CONFIG_FETCH_AUTO)
		return schema_refuse_key(s, d->fetch_line, "fetch",
			"is only for datasets in a store; remove it, or make path: a URL");
	if (d->fetch == CONFIG_FETCH_PIECE && !s->config->cache_dir)
		return schema_refuse_key(s, d->fetch_line, "fetch",
			"piece needs a cache; add cache: {dir: …, size: …}, or set fetch: window");
	if (d->fetch == CONFIG_FETCH_PIECE && s->config->cache_bytes / d->piece < PIECES_LEAST)
		return schema_refuse_key(s, d->piece_line, "piece",
			"the cache of %" PRIu64 " bytes has space for %" PRIu64
			" pieces of %" PRIu32
			"; must be at least %d: raise cache.size, or lower piece",
			s->config->cache_bytes, s->config->cache_bytes / d->piece, d->piece,
			PIECES_LEAST);
	/* The command reads `stores:` of the config, which must be complete before. */
	if (remote && !d->manifest)
		return schema_refuse_key(s, d->path_line, "manifest",
			"is missing, and a dataset in a store needs one; set manifest: %s.jsonl, "
			"and run `tokctl manifest %.300s %s.jsonl%s%.200s`",
			d->name, d->path, d->name, path.store ? " -c " : "",
			path.store ? s->config->path : "");
	if (d->label_mask && url_text_is(d->label_mask) != remote)
		return schema_refuse_key(s, d->label_mask_line, "label_mask",
			"is %s a store, and the shards are %s; move one of them",
			remote ? "not in" : "in", remote ? "in one" : "not");
	return true;
}

bool stores_check(struct schema *s)
{
	for (uint32_t i = 0; i < s->config->streams; i++) {
		const struct config_stream *stream = &s->config->stream[i];
		char shown[64];

		for (uint32_t d = 0; d < stream->datasets; d++) {
			snprintf(s->field, sizeof(s->field), "streams.%s.datasets[%u]",
				schema_show(stream->name, shown), d);
			if (!check_dataset(s, &stream->dataset[d]))
				return false;
		}
	}
	return true;
}
