#include "daemon/store/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 20 };

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
	SETTING("role_arn", other),
	SETTING("source_profile", other),
	SETTING("sso_session", other),
	SETTING("sso_start_url", other),
};

static const char blanks[] = " \t\r\n\f\v";

char *profile_trim(char *text, size_t n)
{
	while (n > 0 && strchr(blanks, text[n - 1]))
		n--;
	text[n] = 0;
	return text + strspn(text, blanks);
}

char *profile_text(const char *path, char *text, size_t bytes, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
	size_t n = 0;
	ssize_t got = fd < 0 ? -1 : 1;

	while (got > 0 && n < bytes) {
		got = read(fd, text + n, bytes - n);
		n += got > 0 ? (size_t)got : 0;
	}
	if (got < 0)
		fault_errno(fault, errno, "", "%s: %s", path, strerror(errno));
	else if (n == bytes)
		fault_set(fault, FAULT_DATA, "", "%s: is larger than %zu bytes", path, bytes - 1);
	if (fd >= 0)
		close(fd);
	return got >= 0 && n < bytes ? profile_trim(text, n) : NULL;
}

/* Whether a section's name, without the brackets, is the profile's. */
static bool is_section(char *name, bool prefixed, const char *wanted)
{
	name = profile_trim(name, strlen(name));
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

int profile_parse(char *text, bool prefixed, struct profile *profile)
{
	bool inside = false;
	int number = 1;

	for (char *line; (line = strsep(&text, "\n")); number++) {
		/* Indented lines are settings of settings, "s3 =". */
		if (line[0] == 0 || strchr("#;\r \t", line[0]))
			continue;
		char *end = strchr(line, line[0] == '[' ? ']' : '=');

		if (line[0] == '[' && end) {
			*end = 0;
			inside = is_section(line + 1, prefixed, profile->name);
			profile->found |= inside;
		} else if (line[0] == '[' || inside) {
			char *value = end ? profile_trim(end + 1, strlen(end + 1)) : NULL;

			if (!end || !take(profile, profile_trim(line, (size_t)(end - line)), value))
				return number;
		}
	}
	return 0;
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

bool profile_read(const char *name, struct profile *profile, struct fault *fault)
{
	static const struct {
		const char *variable, *file;
		bool prefixed;
	} files[] = {
		{"AWS_SHARED_CREDENTIALS_FILE", "credentials", false},
		{"AWS_CONFIG_FILE", "config", true},
	};
	const char *usual = text_or_null(getenv("AWS_PROFILE"));
	char *text = malloc(FILE_BYTES), path[PATH_MAX];
	bool good = text || fault_memory(fault);

	*profile = (struct profile){0};
	snprintf(profile->name, sizeof(profile->name), "%s",
		name	? name
		: usual ? usual
			: "default");
	for (int i = 0; i < 2 && good; i++) {
		if (!profile_path(getenv(files[i].variable), files[i].file, path, sizeof(path)))
			continue;
		if (!profile_text(path, text, FILE_BYTES, fault)) {
			good = fault->error == ENOENT || fault->error == ENOTDIR;
			continue;
		}
		int line = profile_parse(text, files[i].prefixed, profile);

		good = line == 0 || fault_set(fault, FAULT_DATA, "",
					    "%s:%d: is not a section, or a setting of at most %d "
					    "bytes; write [NAME] or KEY = VALUE",
					    path, line, SIGN_TOKEN_BYTES - 1);
	}
	free(text);
	return good;
}
