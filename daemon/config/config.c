/* A config in memory: its streams by name, its paths. load.c reads it. */
#include "daemon/config/config.h"

#include "daemon/config/url_text.h"
#include "proto/phrases.h"
#include "proto/place.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool config_whole(const char *path, char whole[PATH_MAX])
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char directory[PATH_MAX], place[PATH_MAX];

	snprintf(directory, sizeof(directory), "%.*s.", (int)(name - path), path);
	if (!realpath(path, whole) || !realpath(directory, place))
		return false;
	size_t n = place[1] ? strlen(place) : 0;

	if (strncmp(whole, place, n) == 0 && strrchr(whole, '/') == whole + n)
		return true;
	return snprintf(whole, PATH_MAX, "%.*s/%s", (int)n, place, name) < PATH_MAX;
}

char *config_state_place(const struct config *config, unsigned i)
{
	char whole[PATH_MAX], path[PLACE_STATE_BYTES];
	bool is = config_whole(config->path, whole);
	const struct place_state_setting setting = {
		.config = config->has_state_dir ? config->state_dir : NULL,
		.given = getenv("STATE_DIRECTORY"),
		.state_home = getenv("XDG_STATE_HOME"),
		.home = getenv("HOME"),
		.config_hash = is ? order_checksum(whole, strlen(whole)) : 0,
	};
	bool found = (i == 0 || is) && place_state(&setting, i, path);

	return found ? strdup(path) : NULL;
}

bool config_may_write(const char *path)
{
	char *part = strdup(path);

	while (part && access(part, F_OK) < 0 && errno == ENOENT) { /* the innermost that exists */
		char *slash = strrchr(part, '/');

		if (!slash)
			break;
		slash[slash == part] = 0;
	}

	bool may = part && access(part, W_OK | X_OK) == 0;
	int error = errno;

	free(part);
	errno = error;
	return may;
}

static void stream_free(struct config_stream *stream)
{
	for (uint32_t i = 0; i < stream->datasets; i++) {
		free(stream->dataset[i].path);
		free(stream->dataset[i].manifest);
		free(stream->dataset[i].format);
		free(stream->dataset[i].column);
		free(stream->dataset[i].label_mask);
	}
	free(stream->dataset);
	for (uint32_t i = 0; i < stream->steps; i++)
		free((double *)stream->step[i].weights);
	free(stream->step);
	free(stream->step_line);
}

static void store_free(struct config_store *store)
{
	free(store->endpoint);
	free(store->region);
	free(store->profile);
	free(store->token_file);
	free(store->query_file);
	free(store->ca);
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (uint32_t i = 0; i < config->stores; i++)
		store_free(&config->store[i]);
	free(config->store);
	free(config->text);
	free(config->cache_dir);
	for (uint32_t i = 0; i < config->streams; i++)
		stream_free(&config->stream[i]);
	free(config->stream);
	free(config->allow_uid);
	free(config->admin_uid);
	free(config->state_dir);
	free(config->socket);
	free(config->directory);
	free(config->path);
	free(config);
}

const struct config_stream *config_stream(const struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->streams; i++)
		if (strcmp(config->stream[i].name, name) == 0)
			return &config->stream[i];
	return NULL;
}

const struct config_store *config_store(const struct config *config, const char *scheme)
{
	for (uint32_t i = 0; config && i < config->stores; i++)
		if (strcmp(config->store[i].name, scheme) == 0)
			return &config->store[i];
	return NULL;
}

char *config_list_streams(
	const struct config *config, const char *name, char list[NEAREST_LIST_BYTES])
{
	const char *known[LIMIT_STREAMS];

	for (uint32_t i = 0; i < config->streams; i++)
		known[i] = config->stream[i].name;
	return nearest_list(list, name, known, config->streams);
}

bool config_refuse(
	struct fault *fault, const char *file, int line, const char *field, const char *text, ...)
{
	va_list args;
	size_t n;

	fault_set(fault, FAULT_ARGUMENT, field, "%s:%d: %s: ", file, line,
		field[0] ? field : "config");
	n = strlen(fault->text);
	va_start(args, text);
	vsnprintf(fault->text + n, sizeof(fault->text) - n, text, args);
	va_end(args);
	return false;
}

bool config_refuse_memory(struct fault *fault, const char *file, int line, const char *field)
{
	config_refuse(fault, file, line, field, PHRASE_MEMORY);
	fault->code = FAULT_MEMORY;
	return false;
}
