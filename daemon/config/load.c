/*
 * The config file and its top-level keys, as a table, which schema.c reads. A new key is a line in
 * such a table, a member of its struct in config.h (freed in config.c if it is owned), and a line
 * in config/tokend.yaml.
 */
#include "daemon/config/config.h"
#include "daemon/config/schema.h"
#include "daemon/config/stream_keys.h"
#include "daemon/config/yaml_load.h"
#include "proto/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

_Static_assert(sizeof(enum config_io) == sizeof(unsigned), "schema_choice() writes an unsigned");

/* @path if it is absolute, else below the config's directory. NULL: out of memory. */
static char *absolute(const struct config *config, const char *path)
{
	char *whole;

	if (path[0] == '/')
		return strdup(path);
	return asprintf(&whole, "%s/%s", config->directory, path) < 0 ? NULL : whole;
}

static bool make_absolute(struct schema *s, const struct config *config, int line, char **path)
{
	char *whole = absolute(config, *path);

	if (!whole)
		return schema_refuse_memory(s, line);
	free(*path);
	*path = whole;
	return true;
}

static bool take_socket(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

	config->has_socket = true;
	if (!schema_text(s, key, value, line, &config->socket) ||
		!make_absolute(s, config, line, &config->socket))
		return false;
	if (strlen(config->socket) > room)
		return schema_refuse(s, line,
			"%s has %zu bytes; a socket's path must have at most %zu", config->socket,
			strlen(config->socket), room);
	return true;
}

static bool take_state_dir(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	config->has_state_dir = true;
	return schema_text(s, key, value, line, &config->state_dir) &&
	       make_absolute(s, config, line, &config->state_dir);
}

/* HOST:PORT, with brackets around an IPv6 host. */
static bool take_metrics(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = schema_scalar(s, value, line, key->right), *colon;
	char shown[64];

	if (!text)
		return false;
	colon = strrchr(text, ':');
	size_t host = colon ? (size_t)(colon - text) : 0;
	size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
	unsigned long port = digits >= 1 && digits <= 5 ? strtoul(colon + 1, NULL, 10) : 0;
	bool six = host > 2 && text[0] == '[' && text[host - 1] == ']';

	if (host == 0 || (!six && memchr(text, ':', host)) || strpbrk(text, " \t/") ||
		colon[1 + digits] != 0 || colon[1] == '0' || port < 1 || port > 65535)
		return schema_refuse(s, line, "'%s' is no address; must be %s",
			schema_show(text, shown), key->right);
	return schema_text(s, key, value, line, to);
}

/* A list of users, [*@count] at *@list. */
static bool take_uids(struct schema *s, yaml_node_t *value, int line, const char *right,
	uid_t **list, uint32_t *count)
{
	/* 2^32 - 1 is no user: it means "none" to the kernel. */
	static const struct schema_key uid_key = {"uid", schema_number, .max = UINT32_MAX - 1};

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, right))
		return false;
	size_t n = (size_t)(value->data.sequence.items.top - value->data.sequence.items.start);

	*list = calloc(n + 1, sizeof(**list));
	if (!*list)
		return schema_refuse_memory(s, line);
	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		size_t field = schema_enter_item(s, i);
		uint64_t uid;

		if (!schema_number(s, &uid_key, node, (int)node->start_mark.line + 1, &uid))
			return false;
		(*list)[(*count)++] = (uid_t)uid;
		schema_leave(s, field);
	}
	return true;
}

static bool take_allowed(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	return take_uids(s, value, line, key->right, &config->allow_uid, &config->allow_uids);
}

static bool take_admins(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	return take_uids(s, value, line, key->right, &config->admin_uid, &config->admin_uids);
}

static const char *const ios[] = {
	[CONFIG_IO_AUTO] = "auto", [CONFIG_IO_URING] = "uring", [CONFIG_IO_PREAD] = "pread", NULL};

static const struct schema_key config_keys[] = {
	{"socket", take_socket, 0, .right = "the path of a socket"},
	{"state_dir", take_state_dir, 0, .right = "a directory"},
	{"memory", schema_size, offsetof(struct config, memory_bytes),
		.right = "a size such as 512MiB, 1GiB or plain bytes", .min = 1, .max = INT64_MAX},
	{"metrics", take_metrics, offsetof(struct config, metrics),
		.right = "HOST:PORT, such as 127.0.0.1:9464"},
	{"io", schema_choice, offsetof(struct config, io), .right = "auto, uring or pread",
		.choices = ios},
	{"direct", schema_flag, offsetof(struct config, direct), .right = "true or false"},
	{"allow_uids", take_allowed, 0, .right = "a list of user numbers, such as [1000]"},
	{"admin_uids", take_admins, 0, .right = "a list of user numbers, such as [1000]"},
	{"streams", streams_take, 0, .right = "a mapping of stream names to streams",
		.required = true},
};

static bool take_document(struct schema *s, struct config *config)
{
	yaml_node_t *root = yaml_document_get_root_node(s->document);

	if (!root)
		return schema_refuse(s, 1,
			"the file is empty; must have at least streams: (see config/tokend.yaml)");
	return schema_mapping(s, root, (int)root->start_mark.line + 1, config_keys,
		SCHEMA_COUNT(config_keys), config, NULL);
}

static bool parse(FILE *file, struct config *config, struct fault *fault)
{
	yaml_document_t document;
	struct schema s = {.document = &document,
		.file = config->path,
		.index = FAULT_NO_INDEX,
		.fault = fault};

	if (!yaml_load(&s, file))
		return false;
	bool done = take_document(&s, config);

	yaml_document_delete(&document);
	return done;
}

/* The directory of the file, absolute. */
static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *directory =
		!slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
	char *whole = directory ? realpath(directory, NULL) : NULL;

	free(directory);
	return whole;
}

static bool set_defaults(struct config *config, const char *path)
{
	config->path = strdup(path);
	config->directory = directory_of(path);
	config->socket = strdup(WIRE_SOCKET);
	config->state_dir = strdup("/var/lib/tokend");
	config->memory_bytes = UINT64_C(1) << 30;
	return config->path && config->directory && config->socket && config->state_dir;
}

struct config *config_load(const char *path, struct fault *fault)
{
	FILE *file = fopen(path, "re");
	struct config *config = NULL;

	if (!file) {
		fault_errno(fault, errno, "",
			"%s: cannot be opened: %s; name the config file with -c", path,
			strerror(errno));
		return NULL;
	}
	config = calloc(1, sizeof(*config));
	if (!config || !set_defaults(config, path))
		fault_errno(fault, errno, "", "%s: %s", path, strerror(errno));
	else if (parse(file, config, fault))
		goto out;
	config_free(config);
	config = NULL;
out:
	fclose(file);
	return config;
}
