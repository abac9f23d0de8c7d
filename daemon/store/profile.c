#include "daemon/store/profile.h"

#include "daemon/store/secret.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTING(key, member)                                                                       \
	{                                                                                          \
		key, offsetof(struct profile, member), sizeof(((struct profile *)0)->member)       \
	}

static const struct setting {
	const char *key;
	size_t at, bytes;
} settings[] = {
	SETTING("aws_access_key_id", access),
	SETTING("aws_secret_access_key", secret),
	SETTING("aws_session_token", token),
	SETTING("region", region),
	SETTING("credential_process", process),
	SETTING("role_arn", role),
	SETTING("web_identity_token_file", token_file),
	SETTING("role_session_name", session),
	SETTING("source_profile", source),
	SETTING("sso_session", sso),
	SETTING("sso_start_url", sso),
};

static const char blanks[] = " \t\r\f\v";

/* Cuts blanks off both ends of the @n bytes at @text. */
static char *trim(char *text, size_t n)
{
	while (n > 0 && strchr(blanks, text[n - 1]))
		n--;
	text[n] = 0;
	return text + strspn(text, blanks);
}

/* Whether a section's name, without the brackets, is the profile's. */
static bool is_section(char *name, bool prefixed, const char *wanted)
{
	name = trim(name, strlen(name));
	if (prefixed && strcmp(name, "default") != 0) {
		if (strncmp(name, "profile", 7) != 0 || !name[7] || !strchr(blanks, name[7]))
			return false;
		name += 7 + strspn(name + 7, blanks);
	}
	return strcmp(name, wanted) == 0;
}

/* False: the value is too long. */
static bool take(struct profile *profile, const char *key, const char *value)
{
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		char *to = (char *)profile + settings[i].at;

		if (strcasecmp(settings[i].key, key) != 0 || to[0])
			continue;
		if (strlen(value) >= settings[i].bytes)
			return false;
		memcpy(to, value, strlen(value) + 1);
	}
	return true;
}

bool profile_parse(char *text, bool prefixed, struct profile *profile, int *number)
{
	bool inside = false;

	*number = 0;
	for (char *line = text, *next; line; line = next) {
		size_t n = strcspn(line, "\n");

		next = line[n] ? line + n + 1 : NULL;
		line[n] = 0;
		++*number;
		/* Indented lines are settings of settings, "s3 =". */
		if (line[0] == 0 || strchr("#;\r \t", line[0]))
			continue;
		if (line[0] == '[') {
			char *end = strchr(line, ']');

			if (!end)
				return false;
			*end = 0;
			inside = is_section(line + 1, prefixed, profile->name);
			profile->found |= inside;
			continue;
		}
		if (!inside)
			continue;
		char *equals = strchr(line, '=');

		if (!equals)
			return false;
		char *value = trim(equals + 1, strlen(equals + 1));

		if (!take(profile, trim(line, (size_t)(equals - line)), value))
			return false;
	}
	return true;
}

bool profile_path(const char *given, const char *file, char *path, size_t path_bytes)
{
	const char *home = getenv("HOME");
	char buffer[1024];
	struct passwd user, *found = NULL;
	bool below_home = !given || !*given || strncmp(given, "~/", 2) == 0;

	if (below_home && (!home || !*home)) {
		getpwuid_r(geteuid(), &user, buffer, sizeof(buffer), &found);
		home = found ? found->pw_dir : NULL;
	}
	if (below_home && !home)
		return false;
	int n = !given || !*given ? snprintf(path, path_bytes, "%s/.aws/%s", home, file)
		: below_home	  ? snprintf(path, path_bytes, "%s%s", home, given + 1)
				  : snprintf(path, path_bytes, "%s", given);

	return n >= 0 && (size_t)n < path_bytes;
}

/* Reads one of the files. A file that does not exist has no sections. */
static bool read_file(const char *given, const char *file, bool prefixed, struct profile *profile,
	char *text, struct fault *fault)
{
	char path[PATH_MAX];
	int number;

	if (!profile_path(given, file, path, sizeof(path)))
		return true;
	if (secret_read(path, text, PROFILE_FILE_BYTES, fault) < 0)
		return fault->error == ENOENT || fault->error == ENOTDIR;
	if (profile_parse(text, prefixed, profile, &number))
		return true;
	return fault_set(fault, FAULT_DATA, "",
		"%s:%d: is not a section, or a setting of at most %d bytes; write [NAME] or "
		"KEY = VALUE",
		path, number, SIGN_TOKEN_BYTES - 1);
}

bool profile_read(const char *name, struct profile *profile, struct fault *fault)
{
	char *text = secret_new(PROFILE_FILE_BYTES);
	const char *given = getenv("AWS_PROFILE");

	memset(profile, 0, sizeof(*profile));
	if (!text)
		return fault_memory(fault);
	if (!name)
		name = given && *given ? given : "default";
	snprintf(profile->name, sizeof(profile->name), "%s", name);
	bool done = read_file(getenv("AWS_SHARED_CREDENTIALS_FILE"), "credentials", false, profile,
			    text, fault) &&
		    read_file(getenv("AWS_CONFIG_FILE"), "config", true, profile, text, fault);

	secret_free(text, PROFILE_FILE_BYTES);
	return done;
}

bool profile_region(const char *name, char *region, size_t region_bytes)
{
	struct profile *profile = secret_new(sizeof(*profile));
	struct fault fault;
	bool found = profile && profile_read(name, profile, &fault) && profile->region[0];

	if (found)
		snprintf(region, region_bytes, "%s", profile->region);
	secret_free(profile, sizeof(*profile));
	return found;
}
