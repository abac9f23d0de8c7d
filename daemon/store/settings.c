#include "daemon/store/settings.h"

#include "daemon/config/refuse.h"
#include "daemon/store/profile.h"
#include "daemon/store/secret.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Always false. */
__attribute__((format(printf, 6, 7))) static bool refuse(struct fault *fault,
	const struct config *config, const struct config_store *store, int line, const char *key,
	const char *text, ...)
{
	char field[FAULT_FIELD_BYTES], what[LIMIT_TEXT_BYTES / 2];
	va_list args;

	snprintf(field, sizeof(field), "stores.%s.%s", store->name, key);
	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	return config_refuse(fault, config->path, line, field, FAULT_NO_INDEX, "%s", what);
}

static bool check_profile(
	const struct config *config, const struct config_store *store, struct fault *fault)
{
	struct profile *profile = secret_new(sizeof(*profile));
	struct fault why;
	bool good = false;

	if (!profile)
		fault_memory(fault);
	else if (!profile_read(store->profile, profile, &why))
		refuse(fault, config, store, store->profile_line, "profile", "%s", why.text);
	else if (!profile->found)
		refuse(fault, config, store, store->profile_line, "profile",
			"'%s' is in neither of the AWS files; add [%s] to ~/.aws/credentials",
			profile->name, profile->name);
	else
		good = true;
	secret_free(profile, sizeof(*profile));
	return good;
}

static bool check_file(const struct config *config, const struct config_store *store,
	const char *path, int line, const char *key, struct fault *fault)
{
	if (!path || access(path, R_OK) == 0)
		return true;
	return refuse(fault, config, store, line, key,
		"%s cannot be read: %s; must be a file that this user may read", path,
		strerror(errno));
}

/* Whether the file has a certificate. libcurl checks the rest. */
static bool check_ca(
	const struct config *config, const struct config_store *store, struct fault *fault)
{
	FILE *file = store->ca ? fopen(store->ca, "re") : NULL;
	char line[256];
	bool found = !store->ca;

	if (store->ca && !file)
		return check_file(config, store, store->ca, store->ca_line, "ca", fault) ||
		       refuse(fault, config, store, store->ca_line, "ca", "%s cannot be opened",
			       store->ca);
	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, "-----BEGIN CERTIFICATE-----") ||
			strstr(line, "-----BEGIN TRUSTED CERTIFICATE-----");
	if (file)
		fclose(file);
	if (found)
		return true;
	return refuse(fault, config, store, store->ca_line, "ca",
		"%s has no certificate; must be a PEM file (-----BEGIN CERTIFICATE-----)",
		store->ca);
}

bool settings_check(const struct config *config, struct fault *fault)
{
	for (uint32_t i = 0; config && i < config->stores; i++) {
		const struct config_store *s = &config->store[i];

		if ((s->profile && !check_profile(config, s, fault)) ||
			!check_file(config, s, s->token_file, s->token_file_line, "token_file",
				fault) ||
			!check_file(config, s, s->query_file, s->query_file_line, "query_file",
				fault) ||
			!check_ca(config, s, fault))
			return false;
	}
	return true;
}

static bool is_loopback(const char *host)
{
	static const char *const names[] = {"localhost", "127.", "[::1]"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strncmp(host, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

void settings_note(
	const struct url_place *place, void (*log)(void *context, const char *line), void *context)
{
	const struct config_store *store = place->store;
	bool names_file = store && (store->token_file || store->query_file);
	char path[PATH_MAX], line[LIMIT_TEXT_BYTES];
	struct stat st;

	if (!log || (store && store->anonymous) || (place->kind == URL_HTTPS && !names_file))
		return;
	if (!place->tls && !is_loopback(place->host)) {
		snprintf(line, sizeof(line),
			"%.300s: requests with credentials go to http://%.300s unencrypted; use "
			"https://, "
			"or set anonymous: true",
			place->name, place->host);
		log(context, line);
	}
	if (names_file)
		snprintf(path, sizeof(path), "%s",
			store->token_file ? store->token_file : store->query_file);
	else if (!profile_path(
			 getenv("AWS_SHARED_CREDENTIALS_FILE"), "credentials", path, sizeof(path)))
		return;
	if (stat(path, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH))) {
		snprintf(line, sizeof(line),
			"%.700s: other users may read the credentials in it (mode %03o); run chmod "
			"600",
			path, st.st_mode & 0777);
		log(context, line);
	}
}
