/* The config file and its top-level keys. ARCHITECTURE.md says what a new key needs. */
#include "daemon/config/schema.h"
#include "proto/place.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	TEXT_MOST = 1 << 20,
	DEPTH_MOST = 32, /* a config needs 7 */
};

_Static_assert(sizeof(enum config_io) == sizeof(unsigned), "schema_choice() writes an unsigned");

/* ---- lists of users: numbers, names, and groups as "@NAME" ---- */

#define USERS_RIGHT "a list of user names, numbers or \"@GROUP\", such as [alice, 1000]"
static const char USER_RIGHT[] = "a user name, \"@GROUP\", or a user number";

struct users {
	uid_t **list;
	uint32_t *count;
	size_t room;
};

static bool add(struct schema *s, struct users *to, uid_t uid)
{
	if (*to->count == to->room) {
		size_t room = 2 * to->room + 8;
		uid_t *list = realloc(*to->list, room * sizeof(*list));

		if (!list)
			return schema_refuse_memory(s);
		*to->list = list;
		to->room = room;
	}
	(*to->list)[(*to->count)++] = uid;
	return true;
}

/* The members that it has now. Also users whose primary group it is: they are in passwd, not in
 * group. */
static bool take_group(struct schema *s, const char *name, struct users *to)
{
	const struct group *group = getgrnam(name);
	const struct passwd *user;
	char shown[64];
	bool fine = true;

	if (!group)
		return schema_refuse(s,
			"no group is called %s on this host; check it with `getent group %s`",
			schema_show(name, shown), shown);
	for (char **member = group->gr_mem; fine && *member; member++) {
		user = getpwnam(*member);
		fine = !user || add(s, to, user->pw_uid);
	}
	setpwent();
	while (fine && (user = getpwent()))
		fine = user->pw_gid != group->gr_gid || add(s, to, user->pw_uid);
	endpwent();
	return fine;
}

static bool take_user(struct schema *s, const char *no_name, yaml_node_t *value, void *to)
{
	/* The kernel uses 2^32 - 1 for "no user". */
	static const struct schema_key number = {
		"uid", schema_number, .max = UINT32_MAX - 1, .right = USER_RIGHT};
	const char *text = schema_scalar(s, value, USER_RIGHT);
	const struct passwd *user;
	char shown[64];
	uint64_t uid;

	(void)no_name;
	if (!text)
		return false;
	if (text[0] == '@')
		return take_group(s, text + 1, to);
	/* POSIX allows names of digits alone, but no system creates them. */
	if (strspn(text, "+-.0123456789") == strlen(text))
		return schema_number(s, &number, value, &uid) && add(s, to, (uid_t)uid);
	user = getpwnam(text);
	if (!user)
		return schema_refuse(s, "no user is called %s on this host; check it with `id %s`",
			schema_show(text, shown), shown);
	return add(s, to, user->pw_uid);
}

static const struct schema_entries users = {
	.type = YAML_SEQUENCE_NODE, .right = USERS_RIGHT, .take = take_user};

static SCHEMA_TAKER(take_allow_uids)
{
	struct config *config = to;

	(void)key;
	return schema_each(s, &users, value, NULL,
		&(struct users){&config->allow_uid, &config->allow_uids, 0});
}

static SCHEMA_TAKER(take_admin_uids)
{
	struct config *config = to;

	(void)key;
	return schema_each(s, &users, value, NULL,
		&(struct users){&config->admin_uid, &config->admin_uids, 0});
}

/* ---- keys ---- */

static SCHEMA_TAKER(take_socket)
{
	size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	char **path = to;

	if (!schema_path(s, key, value, to))
		return false;
	return strlen(*path) <= most || schema_refuse(s, "%s has %zu bytes; must have at most %zu",
						*path, strlen(*path), most);
}

static const char *const ios[] = {
	[CONFIG_IO_AUTO] = "auto", [CONFIG_IO_URING] = "uring", [CONFIG_IO_PREAD] = "pread", NULL};

static const struct schema_key config_keys[] = {
	{"socket", take_socket, offsetof(struct config, socket),
		.right = "a path of at most 107 bytes", .preset = WIRE_SOCKET,
		.help = "The socket on which trainers and tokctl connect. `--socket` and "
			"`$TOKEND_SOCKET` come before it. A user who may not create the default "
			"socket gets one of his own: see PLACES in `tokctl`(1)."},
	{"state_dir", schema_path, offsetof(struct config, state_dir), .right = "a directory",
		.preset = PLACE_STATE_DIR,
		.help = "Where snapshots of cursors are written, and the last cursor of each run. "
			"Under systemd, `$STATE_DIRECTORY` comes before the default. A user who "
			"may not write to the default directory gets `$XDG_STATE_HOME/tokend`, "
			"otherwise `~/.local/state/tokend`. So does a daemon with `--private` "
			"whose user may not write to the directory that is set here."},
	{"memory", schema_size, offsetof(struct config, memory_bytes),
		.right = "a size such as 512MiB or 1GiB, or a number of bytes", .min = 1,
		.max = INT64_MAX, .preset = "1GiB",
		.help = "All rings and staging buffers together. With a compressed dataset, a "
			"quarter is for decoded frames and their decoders, and no frame may be "
			"larger than that. With shards that have an index, a sixteenth caches the "
			"indexes of shards that are not in use. If the cgroup allows less, its "
			"limit less a sixteenth (at least 16 MiB) is used, and the log says so."},
	{"io", schema_choice, offsetof(struct config, io), .choices = ios, .preset = "auto",
		.help = "How shards are read: `uring` is io_uring, `pread` is a pool of threads, "
			"and `auto` uses io_uring if the kernel allows it."},
	{"direct", schema_flag, offsetof(struct config, direct), .preset = "false",
		.help = "Read with O_DIRECT, for local disks and data much larger than RAM. "
			"Compressed shards are read without it."},
	{"allow_uids", take_allow_uids, 0, .right = USERS_RIGHT, .otherwise = "none",
		.help = "Users who may connect, in addition to root and the daemon's own user. A "
			"group means its members when the config is read. "
			"Their trainers set `$TOKEND_TRUST_UID` to the daemon's user number, "
			"unless systemd listens. If several users are listed here and in "
			"admin_uids, each gets at most half of the connections and half of the "
			"memory. A user may write 256 files into state_dir at once and then 10 a "
			"second. Root and the daemon's own user have no limits."},
	{"admin_uids", take_admin_uids, 0, .right = USERS_RIGHT, .otherwise = "none",
		.help = "Users who may connect and change every run, as root may. Runs of other "
			"users are called `RUN@UID`: only that user, root, the daemon's own user "
			"and those who are listed here may attach to them, save their snapshots or "
			"change them."},
	{"stores", stores_take, 0,
		.right = "a mapping of names to stores, such as {lab: {endpoint: …}}",
		.otherwise = "only what the environment says",
		.help = "Object stores by name, at most 64. A name is the scheme of its URLs: "
			"`lab://bucket/prefix/`. s3, gs and https need no entry, but may have one. "
			"This file contains no secret. Credentials come from the environment, the "
			"shared AWS files or the machine's role."},
	{"cache", cache_take, 0, .right = "{dir: …, size: …}", .otherwise = "none",
		.help = "A cache on a local disk for datasets in stores, see fetch."},
	{"streams", streams_take, 0, .required = true,
		.right = "a mapping of stream names to streams",
		.help = "The streams by name: 1 to 1024. A name has 1 to 64 bytes, does not begin "
			"with a dot, and contains neither '/' nor control characters."},
};

const struct schema_table config_table = {config_keys, SCHEMA_COUNT(config_keys)};

/* ---- YAML ---- */

/* libyaml does not report which error its input had, so the file is read here. */
static bool read_text(struct schema *s, FILE *file)
{
	struct config *c = s->config;

	c->text = malloc(TEXT_MOST + 1);
	if (!c->text)
		return schema_refuse_memory(s);
	errno = 0;
	c->text_bytes = fread(c->text, 1, TEXT_MOST + 1, file);
	if (ferror(file))
		return fault_errno(s->fault, errno, "",
			"%s: cannot be read: %s; pass a config file of tokend", c->path,
			strerror(errno));
	if (c->text_bytes > TEXT_MOST)
		return schema_refuse(s,
			"the file is larger than %d MiB; pass a config file of tokend",
			TEXT_MOST >> 20);
	char *fits = realloc(c->text, c->text_bytes + 1);

	c->text = fits ? fits : c->text;
	c->digest = order_checksum(c->text, c->text_bytes);
	return true;
}

/*
 * libyaml looks through all open brackets at every token: a file of 200,000 "[" takes it most of a
 * minute. Brackets in quotes and comments count, too, but are closed there.
 */
static bool check_depth(struct schema *s)
{
	int depth = 0, line = 1;

	for (size_t i = 0; i < s->config->text_bytes && depth <= DEPTH_MOST; i++) {
		char c = s->config->text[i];

		line += c == '\n';
		depth += c == '[' || c == '{';
		depth -= (c == ']' || c == '}') && depth > 0;
	}
	return depth <= DEPTH_MOST ||
	       schema_refuse_key(s, line, "YAML",
		       "lists and mappings are nested deeper than %d levels; a config needs 7",
		       DEPTH_MOST);
}

static bool refuse_syntax(struct schema *s, const yaml_parser_t *parser)
{
	size_t at = parser->problem_mark.index, column = parser->problem_mark.column + 1;
	const struct config *c = s->config;

	/* A reader error (invalid UTF-8) has an offset but no line. */
	if (parser->error == YAML_READER_ERROR)
		return schema_refuse_key(s, (int)parser->mark.line + 1, "YAML",
			"%s at byte %zu; must be a file of UTF-8 text", parser->problem,
			parser->problem_offset);
	if (parser->error == YAML_MEMORY_ERROR)
		return schema_refuse_memory(s);
	/* YAML reserves @ */
	if (parser->error == YAML_SCANNER_ERROR && at < c->text_bytes && c->text[at] == '@')
		return schema_refuse_key(s, (int)parser->problem_mark.line + 1, "YAML",
			"a word that begins with @ (column %zu) needs quotes, as in \"@GROUP\"",
			column);
	return schema_refuse_key(s, (int)parser->problem_mark.line + 1, "YAML",
		"%s (column %zu); must be valid YAML",
		parser->problem ? parser->problem : "cannot be parsed", column);
}

static bool take_document(struct schema *s)
{
	struct config *config = s->config;
	yaml_node_t *root = yaml_document_get_root_node(s->document);
	struct schema_lines lines;

	if (!root)
		return schema_refuse(s, "the file is empty; must have at least streams:");
	s->line = (int)root->start_mark.line + 1;
	if (!schema_mapping(s, root, &config_table, config, &lines))
		return false;
	config->has_socket = schema_line(&lines, "socket") != 0;
	config->has_state_dir = schema_line(&lines, "state_dir") != 0;
	return stores_check(s);
}

/* Most programs would ignore a second document. */
static bool check_trailing(struct schema *s, yaml_parser_t *parser)
{
	yaml_document_t more;

	if (!yaml_parser_load(parser, &more))
		return refuse_syntax(s, parser);
	bool trailing = yaml_document_get_root_node(&more) != NULL;

	s->line = (int)more.start_mark.line + 1;
	yaml_document_delete(&more);
	return !trailing ||
	       schema_refuse(s, "a second YAML document begins here; must be only one");
}

static bool parse(FILE *file, struct config *config, struct fault *fault)
{
	yaml_document_t document;
	yaml_parser_t parser;
	struct schema s = {.document = &document, .config = config, .line = 1, .fault = fault};

	if (!read_text(&s, file) || !check_depth(&s))
		return false;
	if (!yaml_parser_initialize(&parser))
		return schema_refuse_memory(&s);
	yaml_parser_set_input_string(
		&parser, (const unsigned char *)config->text, config->text_bytes);
	bool loaded = yaml_parser_load(&parser, &document);
	bool done = loaded ? check_trailing(&s, &parser) && take_document(&s)
			   : refuse_syntax(&s, &parser);

	if (loaded)
		yaml_document_delete(&document);
	yaml_parser_delete(&parser);
	return done;
}

/* ---- files ---- */

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
			"%s: cannot be read: not a regular file; pass a config file of tokend",
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
	fault_errno(fault, errno, "", "%s: cannot be opened: %s; pass a config file of tokend",
		path, strerror(errno));
	return NULL;
}
