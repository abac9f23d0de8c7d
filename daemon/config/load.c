/*
 * The config file and its top-level keys. A new key is a row in such a table, a member of its
 * struct in config.h (freed in config.c if it is owned), and a line in config/tokend.yaml.
 */
#include "daemon/config/config.h"
#include "daemon/config/keys.h"
#include "daemon/config/path_text.h"
#include "daemon/config/schema.h"
#include "daemon/config/store_keys.h"
#include "daemon/config/stream_keys.h"
#include "daemon/config/users.h"
#include "daemon/config/yaml_load.h"
#include "proto/place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(sizeof(enum config_io) == sizeof(unsigned), "schema_choice() writes an unsigned");

/* @path, relative to the config's directory. Owned by the caller. NULL: out of memory. */
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

	if (!path_text(s, key, value, line, &config->socket) ||
		!make_absolute(s, config, line, &config->socket))
		return false;
	if (strlen(config->socket) > room)
		return schema_refuse(s, line, "%s has %zu bytes; must have at most %zu",
			config->socket, strlen(config->socket), room);
	return true;
}

static bool take_state_dir(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	return path_text(s, key, value, line, &config->state_dir) &&
	       make_absolute(s, config, line, &config->state_dir);
}

static bool take_allowed(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	(void)key;
	return users_take(s, value, line, &config->allow_uid, &config->allow_uids);
}

static bool take_admins(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	(void)key;
	return users_take(s, value, line, &config->admin_uid, &config->admin_uids);
}

static const char *const ios[] = {
	[CONFIG_IO_AUTO] = "auto", [CONFIG_IO_URING] = "uring", [CONFIG_IO_PREAD] = "pread", NULL};

enum { SOCKET, STATE_DIR, MEMORY, IO, DIRECT, ALLOW_UIDS, ADMIN_UIDS, STORES, CACHE, STREAMS };

static const struct schema_key config_keys[] = {
	[SOCKET] = {"socket", take_socket, 0, .right = "a path of at most 107 bytes",
		.preset = WIRE_SOCKET,
		.help = "The socket on which trainers and tokctl connect. `--socket` and "
			"`$TOKEND_SOCKET` come before it. A user who may not create the default "
			"socket gets one of his own: see PLACES in `tokctl`(1)."},
	[STATE_DIR] = {"state_dir", take_state_dir, 0, .right = "a directory",
		.preset = PLACE_STATE_DIR,
		.help = "Where snapshots of cursors and the logs of changed mixes are written. "
			"Under systemd, `$STATE_DIRECTORY` comes before the default. A user who "
			"may not write to the default directory gets `$XDG_STATE_HOME/tokend`, "
			"otherwise `~/.local/state/tokend`. So does a daemon with `--private` "
			"whose user may not write to the directory that is set here."},
	[MEMORY] = {"memory", schema_size, offsetof(struct config, memory_bytes),
		.right = "a size such as 512MiB or 1GiB, or a number of bytes", .min = 1,
		.max = INT64_MAX, .preset = "1GiB",
		.help = "All rings and staging buffers together. With a compressed dataset, a "
			"quarter is for decoded frames and their decoders, and no frame may be "
			"larger than that. With shards that have an index, a sixteenth caches the "
			"indexes of shards that are not in use. If the cgroup allows less, its "
			"limit less a sixteenth (at least 16 MiB) is used, and the log says so."},
	[IO] = {"io", schema_choice, offsetof(struct config, io), .choices = ios, .preset = "auto",
		.help = "How shards are read: `uring` is io_uring, `pread` is a pool of threads, "
			"and `auto` uses io_uring if the kernel allows it."},
	[DIRECT] = {"direct", schema_flag, offsetof(struct config, direct), .preset = "false",
		.help = "Read with O_DIRECT, for local disks and data much larger than RAM. "
			"Compressed shards are read without it."},
	[ALLOW_UIDS] = {"allow_uids", take_allowed, 0, .right = USERS_RIGHT, .otherwise = "none",
		.help = "Users who may connect, in addition to root and the daemon's own user. A "
			"group means its members when the config is read. "
			"Their trainers set `$TOKEND_TRUST_UID` to the daemon's user number, "
			"unless systemd listens. If several users are listed here and in "
			"admin_uids, each gets at most half of the connections and half of the "
			"memory. A user may write 256 files into state_dir at once and then 10 a "
			"second. Root and the daemon's own user have no limits."},
	[ADMIN_UIDS] = {"admin_uids", take_admins, 0, .right = USERS_RIGHT, .otherwise = "none",
		.help = "Users who may connect and change every run, as root may. A run belongs to "
			"the first user who attaches to it and is neither root nor listed here. "
			"Other users may not attach to it, save its snapshots or change it. A run "
			"without a name that belongs to someone else becomes `default@UID`."},
	[STORES] = {"stores", stores_take, 0,
		.right = "a mapping of names to stores, such as {lab: {endpoint: …}}",
		.otherwise = "only what the environment says",
		.help = "Object stores by name, at most 64. A name is the scheme of its URLs: "
			"`lab://bucket/prefix/`. s3, gs and https need no entry, but may have one. "
			"This file contains no secret. Credentials come from the environment, the "
			"shared AWS files or the machine's role."},
	[CACHE] = {"cache", cache_take, 0, .right = "{dir: …, size: …}", .otherwise = "none",
		.help = "A cache on a local disk for datasets in stores, see fetch."},
	[STREAMS] = {"streams", streams_take, 0, .required = true,
		.right = "a mapping of stream names to streams",
		.help = "The streams by name: 1 to 1024. A name has 1 to 64 bytes, does not begin "
			"with a dot, and contains neither '/' nor control characters."},
};

const struct schema_table config_table = {config_keys, SCHEMA_COUNT(config_keys)};

/* In the order in which a key is looked for. */
static const struct schema_level levels[] = {
	{&config_table, "is a key of the whole config; move it out of streams:"},
	{&stream_table, "is a key of a stream; move it below the stream's name in streams:"},
	{&dataset_table, "is a key of a dataset; move it into an entry of datasets:"},
	{&step_table, "is a key of a planned change; move it into an entry of schedule:"},
	{&store_table, "is a key of a store; move it into an entry of stores:"},
	{&cache_table, "is a key of the cache; move it into cache:"},
	{NULL, NULL},
};

static bool take_document(struct schema *s, struct config *config)
{
	int lines[SCHEMA_COUNT(config_keys)];
	yaml_node_t *root = yaml_document_get_root_node(s->document);

	if (!root)
		return schema_refuse(s, 1, "the file is empty; must have at least streams:");
	if (!schema_mapping(s, root, (int)root->start_mark.line + 1, config_keys,
		    SCHEMA_COUNT(config_keys), config, lines))
		return false;
	config->has_socket = lines[SOCKET] != 0;
	config->has_state_dir = lines[STATE_DIR] != 0;
	config->memory_written = config->memory_bytes;
	config->state_dir_written = strdup(config->state_dir);
	if (!config->state_dir_written)
		return schema_refuse_memory(s, 1);
	return stores_check(s, config);
}

static bool parse(FILE *file, struct config *config, struct fault *fault)
{
	yaml_document_t document;
	struct schema s = {.document = &document,
		.file = config->path,
		.levels = levels,
		.index = FAULT_NO_INDEX,
		.fault = fault};

	if (!yaml_load(&s, file, &config->text, &config->text_bytes))
		return false;
	config->digest = order_checksum(config->text, config->text_bytes);
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

static bool set_path(struct config *config, const char *path)
{
	config->path = strdup(path);
	config->directory = directory_of(path);
	return config->path && config->directory;
}

struct config *config_load_from(int fd, const char *path, struct fault *fault)
{
	FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
	struct config *config = file ? calloc(1, sizeof(*config)) : NULL;
	struct stat st;

	if (!file && fd >= 0)
		close(fd);
	if (!config || !set_path(config, path) || fstat(fd, &st) < 0)
		fault_errno(fault, errno, "", "%s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode)) /* a FIFO would wait for its writer */
		fault_set(fault, FAULT_ARGUMENT, "",
			"%s: cannot be read: not a regular file; check the path given with -c",
			path);
	else if (parse(file, config, fault))
		goto out;
	config_free(config);
	config = NULL;
out:
	if (file)
		fclose(file);
	return config;
}

struct config *config_load(const char *path, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0)
		return config_load_from(fd, path, fault);
	fault_errno(fault, errno, "", "%s: cannot be opened: %s; check the path given with -c",
		path, strerror(errno));
	return NULL;
}
