#include "daemon/config/store_keys.h"

#include "daemon/config/keys.h"
#include "daemon/config/path_text.h"
#include "daemon/config/url_text.h"
#include "proto/phrases.h"

#include <stdlib.h>
#include <string.h>

enum { STORES_MOST = 64 };

/* ---- values ---- */

static bool looks_secret(const char *text)
{
	static const char *const begins[] = {"AKIA", "ASIA", "hf_", "ya29.", "GOOG1"};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(text, begins[i], strlen(begins[i])) == 0 && strlen(text) >= 20)
			return true;
	return false;
}

/* A text that messages may show: not a secret. */
static bool open_text(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	if (value->type == YAML_SCALAR_NODE && looks_secret((char *)value->data.scalar.value))
		return schema_refuse(s, line,
			"contains a secret, and other users may read this file; must be %s",
			key->right);
	return schema_text(s, key, value, line, to);
}

static bool open_path(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	if (value->type == YAML_SCALAR_NODE && looks_secret((char *)value->data.scalar.value))
		return open_text(s, key, value, line, to);
	return path_text(s, key, value, line, to);
}

static bool take_endpoint(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = schema_scalar(s, value, line, key->right);
	char host[URL_ENDPOINT_BYTES], wrong[LIMIT_TEXT_BYTES];
	bool tls;

	if (!text)
		return false;
	if (!url_text_endpoint(text, &tls, host, wrong))
		return schema_refuse(s, line, "%s", wrong);
	return schema_text(s, key, value, line, to);
}

static const char *const styles[] = {
	[CONFIG_STYLE_AUTO] = "auto",
	[CONFIG_STYLE_VIRTUAL] = "virtual",
	[CONFIG_STYLE_PATH] = "path",
	NULL,
};
_Static_assert(sizeof(enum config_style) == sizeof(unsigned), "schema_choice() writes an unsigned");

enum {
	STORE_ENDPOINT,
	STORE_REGION,
	STORE_STYLE,
	STORE_PROFILE,
	STORE_ANONYMOUS,
	STORE_TOKEN_FILE,
	STORE_QUERY_FILE,
	STORE_REQUESTER_PAYS,
	STORE_CA,
	STORE_CONNECTIONS,
};

static const struct schema_key store_keys[] = {
	[STORE_ENDPOINT] = {"endpoint", take_endpoint, offsetof(struct config_store, endpoint),
		.right = URL_ENDPOINT_RIGHT,
		.otherwise = "`$AWS_ENDPOINT_URL_S3`, `$AWS_ENDPOINT_URL`, the region's of AWS",
		.help = "The server, without a path."},
	[STORE_REGION] = {"region", open_text, offsetof(struct config_store, region),
		.right = "a region, such as us-east-1",
		.otherwise = "`$AWS_REGION`, `$AWS_DEFAULT_REGION`, the profile's, us-east-1",
		.help = "The region in signatures and in AWS's host names."},
	[STORE_STYLE] = {"style", schema_choice, offsetof(struct config_store, style),
		.choices = styles, .preset = "auto",
		.help = "Where requests name the bucket: in the host (`virtual`) or in the path "
			"(`path`). `auto` is `path` with an endpoint, otherwise `virtual`."},
	[STORE_PROFILE] = {"profile", open_text, offsetof(struct config_store, profile),
		.right = "a section of ~/.aws/credentials or ~/.aws/config",
		.otherwise = "the first provider that has credentials",
		.help = "Use the credentials of this section of the shared AWS files and no "
			"others. At most one of profile, anonymous, token_file and query_file is "
			"set."},
	[STORE_ANONYMOUS] = {"anonymous", schema_flag, offsetof(struct config_store, anonymous),
		.preset = "false", .help = "Send requests without credentials, for public data."},
	[STORE_TOKEN_FILE] = {"token_file", open_path, offsetof(struct config_store, token_file),
		.right = "a file that contains a bearer token", .otherwise = "none",
		.help = "Send the token in this file with each request. Someone else renews it; "
			"it is read again when it changes."},
	[STORE_QUERY_FILE] = {"query_file", open_path, offsetof(struct config_store, query_file),
		.right = "a file that contains the query of a signed URL", .otherwise = "none",
		.help = "Append the query in this file to each URL, as for a shared access "
			"signature of Azure. It is read again when it changes."},
	[STORE_REQUESTER_PAYS] = {"requester_pays", schema_flag,
		offsetof(struct config_store, requester_pays), .preset = "false",
		.help = "Accept the costs of requests to buckets whose owner does not pay."},
	[STORE_CA] = {"ca", path_text, offsetof(struct config_store, ca),
		.right = "a PEM file of certificates", .otherwise = "the system's only",
		.help = "Certificates that are trusted in addition to the system's."},
	[STORE_CONNECTIONS] = {"connections", schema_number32,
		offsetof(struct config_store, connections), .min = 1, .max = 4096,
		.unit = "connections", .preset = "128",
		.help = "The most GETs in flight. Fewer are used while the store is slow."},
};

const struct schema_table store_table = {store_keys, SCHEMA_COUNT(store_keys)};

enum { CACHE_DIR, CACHE_SIZE };

static const struct schema_key cache_keys[] = {
	[CACHE_DIR] = {"dir", path_text, offsetof(struct config, cache_dir),
		.right = "a directory of a local disk", .required = true,
		.help = "The directory. It belongs to one daemon, which creates it."},
	[CACHE_SIZE] = {"size", schema_size, offsetof(struct config, cache_bytes),
		.right = "a size such as 500GiB or 2TiB, or a number of bytes", .required = true,
		.min = 1, .max = INT64_MAX, .help = "The most disk space that it uses."},
};

const struct schema_table cache_table = {cache_keys, SCHEMA_COUNT(cache_keys)};

/* ---- stores ---- */

/* Refuses keys that someone would give secrets to. Their values are not shown. */
static bool refuse_secrets(struct schema *s, yaml_node_t *node)
{
	static const char *const parts[] = {"secret", "access_key", "password", "session_token"};

	if (node->type != YAML_MAPPING_NODE)
		return true;
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
		p++) {
		yaml_node_t *key = yaml_document_get_node(s->document, p->key);
		const char *name =
			key->type == YAML_SCALAR_NODE ? (char *)key->data.scalar.value : "";
		char shown[64];

		for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
			if (!strcasestr(name, parts[i]) && strcmp(name, "token") != 0)
				continue;
			schema_enter(s, ".%s", schema_show(name, shown));
			return schema_refuse(s, (int)key->start_mark.line + 1,
				"secrets do not belong in this file, which other users may read; "
				"use profile:, token_file: or the environment");
		}
	}
	return true;
}

static bool make_absolute(struct schema *s, const struct config *config, int line, char **path)
{
	char whole[4096], *copy = NULL;

	if (!*path)
		return true;
	if (config_path(config, *path, whole, sizeof(whole)))
		copy = strdup(whole);
	if (!copy)
		return schema_refuse_memory(s, line);
	free(*path);
	*path = copy;
	return true;
}

/* Of the ways to get credentials, one. */
static bool check_ways(struct schema *s, const struct config_store *store, const int *lines)
{
	const int ways[] = {STORE_PROFILE, STORE_ANONYMOUS, STORE_TOKEN_FILE, STORE_QUERY_FILE};
	int first = -1;

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		if (!lines[ways[i]] || (ways[i] == STORE_ANONYMOUS && !store->anonymous))
			continue;
		if (first >= 0) {
			schema_enter(s, ".%s", store_keys[ways[i]].name);
			return schema_refuse(s, lines[ways[i]],
				"the store also has %s (line %d); remove one of them",
				store_keys[first].name, lines[first]);
		}
		first = ways[i];
	}
	return true;
}

/* An entry for https:// is about all its servers. */
static bool check_https(struct schema *s, const struct config_store *store, const int *lines)
{
	static const int wrong[] = {
		STORE_ENDPOINT, STORE_REGION, STORE_STYLE, STORE_PROFILE, STORE_REQUESTER_PAYS};

	if (strcmp(store->name, "https") != 0)
		return true;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		if (!lines[wrong[i]])
			continue;
		schema_enter(s, ".%s", store_keys[wrong[i]].name);
		return schema_refuse(s, lines[wrong[i]],
			"is not for https:// URLs, which name their server; remove it, or give the "
			"store another name");
	}
	return true;
}

static bool take_store(struct schema *s, struct config *config, yaml_node_t *node, int line,
	struct config_store *store)
{
	int lines[SCHEMA_COUNT(store_keys)];

	store->line = line;
	if (!refuse_secrets(s, node) ||
		!schema_mapping(s, node, line, store_keys, SCHEMA_COUNT(store_keys), store, lines))
		return false;
	store->profile_line = lines[STORE_PROFILE];
	store->token_file_line = lines[STORE_TOKEN_FILE];
	store->query_file_line = lines[STORE_QUERY_FILE];
	store->ca_line = lines[STORE_CA];
	return check_ways(s, store, lines) && check_https(s, store, lines) &&
	       make_absolute(s, config, line, &store->token_file) &&
	       make_absolute(s, config, line, &store->query_file) &&
	       make_absolute(s, config, line, &store->ca);
}

static bool take_name(
	struct schema *s, const struct config *config, const char *name, int line, char *to)
{
	const struct config_store *other = config_store(config, name);
	char shown[64];

	if (!url_text_scheme_ok(name) || strcmp(name, "file") == 0 || strcmp(name, "http") == 0)
		return schema_refuse(s, line, "'%s' is not a store's name; must be %s",
			schema_show(name, shown), URL_SCHEME_RIGHT);
	if (other)
		return schema_refuse(
			s, line, PHRASE_TWICE "; remove it here or on line %d", other->line);
	strcpy(to, name);
	return true;
}

bool stores_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	if (!schema_node(s, value, YAML_MAPPING_NODE, line, key->right))
		return false;
	yaml_node_pair_t *pair = value->data.mapping.pairs.start;
	size_t n = (size_t)(value->data.mapping.pairs.top - pair);

	if (n > STORES_MOST)
		return schema_refuse(
			s, line, "has %zu stores; must have at most %d", n, STORES_MOST);
	config->store = calloc(n ? n : 1, sizeof(*config->store));
	if (!config->store)
		return schema_refuse_memory(s, line);
	for (size_t i = 0; i < n; i++) {
		struct config_store *store = &config->store[i];
		yaml_node_t *node = yaml_document_get_node(s->document, pair[i].key);
		int at = (int)node->start_mark.line + 1;
		const char *name = schema_scalar(s, node, at, URL_SCHEME_RIGHT);
		char shown[64];

		if (!name)
			return false;
		size_t field = schema_enter(s, ".%s", schema_show(name, shown));

		if (!take_name(s, config, name, at, store->name))
			return false;
		config->stores = (uint32_t)i + 1;
		if (!take_store(s, config, yaml_document_get_node(s->document, pair[i].value), at,
			    store))
			return false;
		schema_leave(s, field);
	}
	return true;
}

bool cache_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	(void)key;
	config->cache_line = line;
	return schema_mapping(s, value, line, cache_keys, SCHEMA_COUNT(cache_keys), config, NULL) &&
	       make_absolute(s, config, line, &config->cache_dir);
}

/* ---- datasets ---- */

/* @prefix: the URL of a directory, otherwise of an object. */
static bool check_url(struct schema *s, const struct config *config, const char *key,
	const char *url, int line, bool prefix)
{
	struct url_text parts;
	char wrong[LIMIT_TEXT_BYTES];
	size_t n = strlen(url);

	if (!url_text_is(url))
		return true;
	size_t field = schema_enter(s, ".%s", key);

	if (!url_text(config, url, &parts, wrong))
		return schema_refuse(s, line, "%s", wrong);
	if (prefix && strchr(url, '*'))
		return schema_refuse(s, line,
			"patterns are not for URLs, because the manifest lists the shards; must "
			"be %s://BUCKET/PREFIX/",
			parts.scheme);
	if (prefix && url[n - 1] != '/')
		return schema_refuse(s, line, "%.200s is not a prefix; write %.200s/", url, url);
	if (!prefix && (url[n - 1] == '/' || !*parts.key))
		return schema_refuse(s, line, "%.200s is not an object; must be %s://BUCKET/KEY",
			url, parts.scheme);
	schema_leave(s, field);
	return true;
}

static bool check_fetch(
	struct schema *s, const struct config *config, const struct config_dataset *d, bool remote)
{
	if (!remote && d->fetch_line && d->fetch != CONFIG_FETCH_AUTO)
		return SCHEMA_REFUSE_KEY(s, d->fetch_line, ".fetch",
			"is only for datasets in a store; remove it, or make path: a URL");
	if (remote && d->fetch == CONFIG_FETCH_PIECE && !config->cache_dir)
		return SCHEMA_REFUSE_KEY(s, d->fetch_line, ".fetch",
			"piece needs a cache; add cache: {dir: …, size: …}, or set fetch: window");
	return true;
}

/* The command reads `stores:` of the config, which must be complete before. */
static bool refuse_unlisted(
	struct schema *s, const struct config *config, const struct config_dataset *d)
{
	char wrong[LIMIT_TEXT_BYTES];
	struct url_text parts;
	bool own = url_text(config, d->path, &parts, wrong) && parts.store;

	return SCHEMA_REFUSE_KEY(s, d->path_line, ".manifest",
		"is missing, and a dataset in a store needs one; set manifest: %s.jsonl, and run "
		"`tokctl manifest %.300s %s.jsonl%s%.200s`",
		d->name, d->path, d->name, own ? " -c " : "", own ? s->file : "");
}

static bool check_dataset(
	struct schema *s, const struct config *config, const struct config_dataset *d)
{
	bool remote = url_text_is(d->path);
	int mask_line = d->label_mask_line ? d->label_mask_line : d->line;

	if (!check_url(s, config, "path", d->path, d->path_line, true) ||
		(d->manifest &&
			!check_url(s, config, "manifest", d->manifest, d->manifest_line, false)) ||
		(d->label_mask &&
			!check_url(s, config, "label_mask", d->label_mask, mask_line, true)) ||
		!check_fetch(s, config, d, remote))
		return false;
	if (remote && !d->manifest)
		return refuse_unlisted(s, config, d);
	if (d->label_mask && url_text_is(d->label_mask) != remote)
		return SCHEMA_REFUSE_KEY(s, mask_line, ".label_mask",
			"is %s a store, and the shards are %s; move one of them",
			remote ? "not in" : "in", remote ? "in one" : "not");
	return true;
}

bool stores_check(struct schema *s, const struct config *config)
{
	for (uint32_t i = 0; i < config->streams; i++) {
		const struct config_stream *stream = &config->stream[i];
		char shown[64];
		size_t field =
			schema_enter(s, "streams.%s.datasets", schema_show(stream->name, shown));

		for (uint32_t d = 0; d < stream->datasets; d++) {
			size_t item = schema_enter_item(s, d);

			if (!check_dataset(s, config, &stream->dataset[d]))
				return false;
			schema_leave(s, item);
		}
		schema_leave(s, field);
	}
	return true;
}
