#include "daemon/store/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	SERVER_MS = 10 * 1000,
	METADATA_MS = 1000, /* it is on the same host */
	METADATA_TRIES = 2,
	PROCESS_MS = 30 * 1000,
	PROCESS_END_MS = 1000, /* from the end of its output to its own */
	FILE_BYTES = 1 << 20,
	STOP_MS = 100, /* between two looks whether the stores close, while a program runs */
};

extern char **environ;

/* A failure that may end, and one that does not end by itself. */
#define LATER(seek, ...) (fault_set(&(seek)->fault, FAULT_IO, "", __VA_ARGS__), PROVIDED_LATER)
#define WRONG(seek, ...)                                                                           \
	(fault_set(&(seek)->fault, FAULT_PERMISSION, "", __VA_ARGS__), PROVIDED_WRONG)

/* ---- sections of the shared AWS files ---- */

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

/* Cuts blanks off both ends of the @n bytes at @text, and ends it. Returns the new beginning. */
static char *trim(char *text, size_t n)
{
	while (n > 0 && strchr(blanks, text[n - 1]))
		n--;
	text[n] = 0;
	return text + strspn(text, blanks);
}

/* Reads a file of fewer than @bytes into @text. Returns its text without the blanks around it, in
 * @text; NULL: @fault. */
static char *read_text(const char *path, char *text, size_t bytes, struct fault *fault)
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
	return got >= 0 && n < bytes ? trim(text, n) : NULL;
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
static bool take_setting(struct profile *profile, const char *key, const char *value)
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
		} else if (line[0] == '[' || inside) {
			char *value = end ? trim(end + 1, strlen(end + 1)) : NULL;

			if (!end || !take_setting(profile, trim(line, (size_t)(end - line)), value))
				return number;
		}
	}
	return 0;
}

/* The path of a file: @given, or below ~/.aws. False: there is no home. */
static bool path_of(const char *given, const char *file, char path[PATH_MAX])
{
	const char *home = variable("HOME");
	bool below_home = !given || strncmp(given, "~/", 2) == 0;

	return (home || !below_home) &&
	       snprintf(path, PATH_MAX, "%s%s%s", below_home ? home : "",
		       given ? given + below_home : "/.aws/", given ? "" : file) < PATH_MAX;
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
	const char *chosen = name ? name : variable("AWS_PROFILE");
	char *text = malloc(FILE_BYTES), path[PATH_MAX];
	bool good = text || fault_memory(fault);

	prctl(PR_SET_DUMPABLE, 0); /* also if only the region is wanted */
	*profile = (struct profile){0};
	snprintf(profile->name, sizeof(profile->name), "%s", chosen ? chosen : "default");
	for (int i = 0; i < 2 && good; i++) {
		if (!path_of(variable(files[i].variable), files[i].file, path))
			continue;
		if (!read_text(path, text, FILE_BYTES, fault)) {
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

/* ---- results ---- */

/* Whether the text can be a header's value of fewer than @bytes. */
static bool fits(const char *text, size_t bytes)
{
	size_t n = 0;

	while (text[n] > ' ' && text[n] <= '~')
		n++;
	return n > 0 && n < bytes && !text[n];
}

/* False: one of them is empty, too long or has control characters. */
static bool use_keys(struct seek *seek, const char *access, const char *secret, const char *token)
{
	struct sign_keys *keys = &seek->found.keys;

	if (!fits(access, sizeof(keys->access)) || !fits(secret, sizeof(keys->secret)) ||
		(token && *token && !fits(token, SIGN_TOKEN_BYTES)))
		return false;
	strcpy(keys->access, access);
	strcpy(keys->secret, secret);
	if (token && *token)
		stpcpy(stpcpy(keys->token_header, SIGN_TOKEN_HEADER), token);
	seek->found.kind = CREDENTIALS_KEYS;
	return true;
}

static bool use_bearer(struct seek *seek, const char *token)
{
	if (!fits(token, CREDENTIALS_BEARER_BYTES - sizeof("Authorization: Bearer ")))
		return false;
	stpcpy(stpcpy(seek->found.bearer, "Authorization: Bearer "), token);
	seek->found.kind = CREDENTIALS_BEARER;
	return true;
}

static bool use_query(struct seek *seek, const char *query)
{
	query += *query == '?';
	if (!fits(query, CREDENTIALS_QUERY_BYTES) || strchr(query, '#'))
		return false;
	strcpy(seek->found.query, query);
	seek->found.kind = CREDENTIALS_QUERY;
	return true;
}

/* Reads "2026-01-01T00:00:00Z". False: it is something else. */
static bool use_expiration(struct seek *seek, const char *text)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest)
		return false;
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	seek->found.expires = timegm(&tm);
	return strcmp(rest, "Z") == 0 || strcmp(rest, "+00:00") == 0 || strcmp(rest, "+0000") == 0;
}

static const char *member(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

enum provided provide_json(struct seek *seek, const char *token)
{
	json_t *object = json_loads(seek->answer, 0, NULL);
	const char *expiration = member(object, "Expiration");
	enum provided result = PROVIDED;

	if (!json_is_object(object))
		result = LATER(seek, "the answer is not a JSON object");
	else if (*expiration && !use_expiration(seek, expiration))
		result = LATER(seek, "Expiration is not a time such as 2026-01-01T00:00:00Z");
	else if (!use_keys(seek, member(object, "AccessKeyId"), member(object, "SecretAccessKey"),
			 member(object, token)))
		result = LATER(seek, "the answer has no valid AccessKeyId and SecretAccessKey");
	json_decref(object);
	return result;
}

/* ---- programs ---- */

/* Starts the command in a process group of its own. Its standard error is dropped, because a log
 * must not repeat what it prints. Returns an error number. */
static int start(const char *command, int out, pid_t *pid)
{
	char *const arguments[] = {"sh", "-c", (char *)command, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, out, 1);
	posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
	posix_spawnattr_init(&attributes);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes,
		POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	int error = posix_spawn(pid, "/bin/sh", &files, &attributes, arguments, environ);

	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return error;
}

/* Reads until the end of the output. NULL, otherwise what was wrong. */
static const char *collect(struct seek *seek, int out)
{
	int64_t end_ms = stores_now_ms() + PROCESS_MS;
	struct pollfd wait = {.fd = out, .events = POLLIN};
	size_t n = 0;

	while (n < sizeof(seek->answer)) {
		if (seek->bucket->stores->closing || stores_now_ms() >= end_ms)
			return "did not end in 30 s";
		if (poll(&wait, 1, STOP_MS) <= 0)
			continue;
		ssize_t got = read(out, seek->answer + n, sizeof(seek->answer) - n);

		if (got < 0)
			return "has no readable output";
		if (got == 0) {
			seek->answer[n] = 0;
			return NULL;
		}
		n += (size_t)got;
	}
	return "printed more than 64 KiB";
}

/* Returns the command's status. @done: it has closed its output, and may end by itself. */
static int end(pid_t pid, bool done)
{
	int64_t end_ms = stores_now_ms() + (done ? PROCESS_END_MS : 0);
	int status = 0;
	pid_t ended = 0;

	while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && stores_now_ms() < end_ms)
		poll(NULL, 0, 5);
	kill(-pid, SIGKILL); /* it may have left processes */
	if (ended == 0)
		waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* credential_process of a profile. */
static enum provided ask_process(struct seek *seek, const char *command)
{
	int fds[2], error, status = 0;
	const char *wrong;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return LATER(seek, "no pipe for credential_process: %s", strerror(errno));
	error = start(command, fds[1], &pid);
	close(fds[1]);
	wrong = error ? strerror(error) : collect(seek, fds[0]);
	if (!error)
		status = end(pid, !wrong);
	close(fds[0]);
	if (wrong)
		return LATER(seek, "credential_process %s%s", error ? "cannot start: " : "", wrong);
	if (status != 0)
		return LATER(
			seek, "credential_process ended with status %d; run it by hand", status);
	return provide_json(seek, "SessionToken");
}

/* ---- servers ---- */

/* Refuses what does not fit, with the zero after it. */
static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct seek *seek = context;

	(void)size;
	if (n >= sizeof(seek->answer) - seek->answer_n)
		return 0;
	memcpy(seek->answer + seek->answer_n, from, n);
	seek->answer_n += n;
	seek->answer[seek->answer_n] = 0;
	return n;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	(void)a, (void)b, (void)c, (void)d;
	return ((const struct stores *)context)->closing;
}

/* Asks seek->url, but for POST never through a proxy. @body: of POST and PUT. @header may be NULL.
 * Fills seek->answer, and returns the status. 0: no answer, seek->fault. */
static int ask(
	struct seek *seek, const char *method, const char *body, const char *header, long most_ms)
{
	const struct curl *curl = seek->bucket->stores->curl;
	CURL *easy = curl_handle(curl, NULL);
	struct curl_slist *headers = easy && header ? curl->slist_append(NULL, header) : NULL;
	long status = 0;

	seek->answer_n = 0;
	seek->answer[0] = 0;
	if (!easy || (header && !headers)) {
		fault_memory(&seek->fault);
	} else {
		curl->easy_setopt(easy, CURLOPT_URL, seek->url);
		curl->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
		if (body)
			curl->easy_setopt(easy, CURLOPT_POSTFIELDS, body);
		curl->easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
		if (strcmp(method, "POST") != 0)
			curl->easy_setopt(easy, CURLOPT_PROXY, "");
		curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, most_ms);
		curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
		curl->easy_setopt(easy, CURLOPT_WRITEDATA, seek);
		curl->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
		curl->easy_setopt(easy, CURLOPT_XFERINFODATA, seek->bucket->stores);
		curl->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
		CURLcode code = curl->easy_perform(easy);

		if (code == CURLE_OK)
			curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		else
			fault_set(&seek->fault, FAULT_IO, "", "%s", curl->easy_strerror(code));
	}
	curl->slist_free_all(headers);
	if (easy)
		curl->easy_cleanup(easy);
	return (int)status;
}

/* A status that is not 200: the same request fails again if it is the fault of the request. */
static enum provided judge(struct seek *seek, int status, const char *code)
{
	if (status == 0) /* ask() said why */
		return PROVIDED_LATER;
	if (status < 400 || status >= 500 || status == 408 || status == 429 ||
		strstr(code, "Expired") || strstr(code, "IDPCommunication"))
		return LATER(seek, "%d%s%s", status, *code ? " " : "", code);
	return WRONG(seek, "%d%s%s", status, *code ? " " : "", code);
}

/* ---- web identity ---- */

static void write_sts_url(struct seek *seek)
{
	const char *endpoint = variable("AWS_ENDPOINT_URL_STS");

	if (!endpoint)
		endpoint = variable("AWS_ENDPOINT_URL");
	if (endpoint)
		snprintf(seek->url, sizeof(seek->url), "%s%s", endpoint,
			endpoint[strlen(endpoint) - 1] == '/' ? "" : "/");
	else
		snprintf(seek->url, sizeof(seek->url), "https://sts.%s.amazonaws.com%s/",
			seek->bucket->place.region,
			strncmp(seek->bucket->place.region, "cn-", 3) == 0 ? ".cn" : "");
}

/* The elements of STS's answer. A value that is too long is cut, to more than a key may have. */
static bool use_sts(struct seek *seek)
{
	char access[SIGN_ACCESS_BYTES + 1], secret[SIGN_SECRET_BYTES + 1], expiration[64];
	const char *text = seek->answer;
	size_t n = seek->answer_n;

	answer_element(text, n, "<AccessKeyId>", access, sizeof(access));
	answer_element(text, n, "<SecretAccessKey>", secret, sizeof(secret));
	answer_element(text, n, "<SessionToken>", seek->token, sizeof(seek->token));
	answer_element(text, n, "<Expiration>", expiration, sizeof(expiration));
	return use_expiration(seek, expiration) && use_keys(seek, access, secret, seek->token);
}

/* A role for the token in a file. POST, not GET: a URL may be in someone's log, and the token is a
 * secret. */
static enum provided from_web_identity(struct seek *seek)
{
	const char *file = variable("AWS_WEB_IDENTITY_TOKEN_FILE");
	const char *role = variable("AWS_ROLE_ARN");
	const char *session = variable("AWS_ROLE_SESSION_NAME"), *token;
	char code[64];

	if (!file) /* AWS_ROLE_ARN alone may be for other programs */
		return PROVIDED_NOTHING;
	if (!role)
		return WRONG(
			seek, "it needs AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE; set both");
	token = read_text(file, seek->token, sizeof(seek->token), &seek->fault);
	if (!token)
		return PROVIDED_LATER;
	const struct {
		const char *name, *value;
	} form[] = {
		{"Action", "AssumeRoleWithWebIdentity"},
		{"RoleArn", role},
		{"RoleSessionName", session ? session : "tokend"},
		{"Version", "2011-06-15"},
		{"WebIdentityToken", token},
	};

	seek->form[0] = 0;
	for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++)
		if (!url_query(seek->form, sizeof(seek->form), form[i].name, form[i].value))
			return WRONG(seek, "%s is too large", file);
	write_sts_url(seek);
	int status = ask(seek, "POST", seek->form, NULL, SERVER_MS);

	answer_element(seek->answer, seek->answer_n, "<Code>", code, sizeof(code));
	if (status != 200)
		return judge(seek, status, code);
	if (!use_sts(seek))
		return LATER(seek, "the answer of %s has no valid credentials", seek->url);
	return PROVIDED;
}

/* ---- containers ---- */

/* Whether a container's URL may get its token: encrypted, or not leaving this host. */
static bool container_url_ok(const char *url)
{
	static const char *const hosts[] = {"http://169.254.170.2", "http://169.254.170.23",
		"http://[fd00:ec2::23]", "http://127.0.0.1", "http://localhost", "http://[::1]"};

	if (strncmp(url, "https://", 8) == 0)
		return true;
	for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
		size_t n = strlen(hosts[i]);

		if (strncmp(url, hosts[i], n) != 0)
			continue;
		if (url[n] == ':') /* only digits: "host:port@other" is a name and a password */
			n += 1 + strspn(url + n + 1, "0123456789");
		if (url[n] == 0 || url[n] == '/')
			return true;
	}
	return false;
}

static enum provided from_container(struct seek *seek)
{
	const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");

	if (!relative && !full)
		return PROVIDED_NOTHING;
	snprintf(seek->url, sizeof(seek->url), "%s%s", relative ? "http://169.254.170.2" : "",
		relative ? relative : full);
	if (!container_url_ok(seek->url))
		return WRONG(seek,
			"AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this host; "
			"such a server gets no token");
	if (file && !(token = read_text(file, seek->token, sizeof(seek->token), &seek->fault)))
		return PROVIDED_LATER;
	if (!file) {
		snprintf(seek->token, sizeof(seek->token), "%s", token ? token : "");
		token = trim(seek->token, strlen(seek->token));
	}
	snprintf(seek->header, sizeof(seek->header), "Authorization: %.16000s", token);
	int status = ask(seek, "GET", NULL, *token ? seek->header : NULL, SERVER_MS);

	return status == 200 ? provide_json(seek, "Token") : judge(seek, status, "");
}

/* ---- metadata of an instance ---- */

static const char *first_line(struct seek *seek)
{
	seek->answer[strcspn(seek->answer, "\r\n")] = 0;
	return seek->answer;
}

/* Asks for @path at @endpoint. */
static int ask_metadata(struct seek *seek, const char *endpoint, const char *path,
	const char *method, const char *header)
{
	size_t n = strlen(endpoint);
	int status = 0;

	snprintf(seek->url, sizeof(seek->url), "%s%s%s", endpoint,
		endpoint[n - 1] == '/' ? "" : "/", path);
	for (int i = 0; status == 0 && i < METADATA_TRIES; i++)
		status = ask(
			seek, method, strcmp(method, "PUT") == 0 ? "" : NULL, header, METADATA_MS);
	return status;
}

/* Another status than 200: there is no such service, unless it failed, or gave the credentials that
 * are used. Only this thread changes whose they are. */
static enum provided absent(struct seek *seek, int status)
{
	bool used = strcmp(seek->found.provider, seek->bucket->wallet.now.provider) == 0;

	judge(seek, status, "");
	return status >= 500 || used ? PROVIDED_LATER : PROVIDED_NOTHING;
}

/* IMDSv2: a token of the session, the role's name, its keys. */
static enum provided from_instance(struct seek *seek)
{
	static const char roles[] = "latest/meta-data/iam/security-credentials/";
	const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
	const char *base = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	char path[512];

	if (disabled && strcasecmp(disabled, "true") == 0)
		return PROVIDED_NOTHING;
	base = base ? base : "http://169.254.169.254";
	int status = ask_metadata(seek, base, "latest/api/token", "PUT",
		"X-aws-ec2-metadata-token-ttl-seconds: 21600");

	if (status != 200)
		return absent(seek, status);
	snprintf(seek->header, sizeof(seek->header), "X-aws-ec2-metadata-token: %.16000s",
		first_line(seek));
	status = ask_metadata(seek, base, roles, "GET", seek->header);
	if (status == 404) /* the instance has no role */
		return absent(seek, status);
	if (status == 200) {
		snprintf(path, sizeof(path), "%s%.300s", roles, first_line(seek));
		status = ask_metadata(seek, base, path, "GET", seek->header);
	}
	if (status == 200)
		return provide_json(seek, "Token");
	judge(seek, status, "");
	return PROVIDED_LATER;
}

static enum provided from_google(struct seek *seek)
{
	static const char path[] = "computeMetadata/v1/instance/service-accounts/default/token";
	const char *host = variable("GCE_METADATA_HOST");
	char base[512];

	snprintf(base, sizeof(base), "http://%s", host ? host : "metadata.google.internal");
	int status = ask_metadata(seek, base, path, "GET", "Metadata-Flavor: Google");

	if (status != 200)
		return absent(seek, status);
	json_t *object = json_loads(seek->answer, 0, NULL);
	json_int_t left = json_integer_value(json_object_get(object, "expires_in"));
	bool good = left > 0 && use_bearer(seek, member(object, "access_token"));

	seek->found.expires = time(NULL) + left;
	json_decref(object);
	return good ? PROVIDED : LATER(seek, "the answer has no access_token and expires_in");
}

/* ---- environment and files ---- */

static enum provided from_environment(struct seek *seek)
{
	const char *access = variable("AWS_ACCESS_KEY_ID");
	const char *secret = variable("AWS_SECRET_ACCESS_KEY");

	if (!access || !secret)
		return PROVIDED_NOTHING;
	if (!use_keys(seek, access, secret, getenv("AWS_SESSION_TOKEN")))
		return WRONG(seek,
			"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN has blanks "
			"or control characters, or is too long; set them again");
	return PROVIDED;
}

static enum provided from_profile(struct seek *seek)
{
	const struct config_store *store = seek->bucket->place.store;
	const char *named = store ? store->profile : NULL;
	struct profile p;

	if (!profile_read(named, &p, &seek->fault))
		return PROVIDED_WRONG;
	snprintf(seek->found.provider, sizeof(seek->found.provider), "profile %.50s", p.name);
	if (p.access[0] && p.secret[0])
		return use_keys(seek, p.access, p.secret, p.token)
			       ? PROVIDED
			       : WRONG(seek, "its keys have blanks or control characters; write "
					     "them again");
	/* A later provider would be another identity than the one that is meant here. */
	if (p.access[0] || p.secret[0])
		return WRONG(seek, "it has only one of aws_access_key_id and "
				   "aws_secret_access_key; set both");
	if (p.process[0])
		return ask_process(seek, p.process);
	if (p.other[0] && seek->bucket->place.kind != URL_GS) /* these are AWS's */
		return WRONG(seek,
			"it uses SSO, role_arn or source_profile, which are not read; use "
			"credential_process = aws configure export-credentials --profile %s "
			"--format process in another profile",
			p.name);
	/* One that `stores:` or the environment names must exist. */
	if (!named && !variable("AWS_PROFILE"))
		return PROVIDED_NOTHING;
	return WRONG(seek,
		"%s%s%s names it, and neither ~/.aws/credentials nor ~/.aws/config has credentials "
		"of it; add aws_access_key_id and aws_secret_access_key, or credential_process",
		named ? "stores." : "AWS_PROFILE", named ? store->name : "",
		named ? ".profile" : "");
}

/* Token and query files of `stores:`. */
static enum provided from_file(struct seek *seek)
{
	const struct config_store *store = seek->bucket->place.store;
	const char *tokens = store->token_file, *path = tokens ? tokens : store->query_file;
	struct fault cause;
	const char *text = read_text(path, seek->answer, sizeof(seek->answer), &cause);

	if (!text)
		return WRONG(seek, "stores.%s.%s: %s; must be a file that this user may read",
			store->name, tokens ? "token_file" : "query_file", cause.text);
	if (tokens ? use_bearer(seek, text) : use_query(seek, text))
		return PROVIDED;
	/* It may be about to be replaced. */
	return LATER(seek, "%s: must contain one %s, and nothing else", path,
		tokens ? "bearer token" : "query, NAME=VALUE&…");
}

/* ---- the chain ---- */

static enum provided anonymous(struct seek *seek)
{
	seek->found.kind = CREDENTIALS_ANONYMOUS;
	return PROVIDED;
}

static enum provided nobody(struct seek *seek)
{
	return WRONG(seek,
		"no credentials: neither in the environment nor in the AWS files, and no role of "
		"this machine; set AWS_PROFILE or profile:, or anonymous: true for public data, "
		"in stores: %s",
		seek->bucket->place.store	     ? seek->bucket->place.store->name
		: seek->bucket->place.kind == URL_GS ? "gs"
						     : "s3");
}

/* Which providers are asked: all of S3 or Google in turn, or the one that `stores:` names. */
enum { S3 = 1, GOOGLE = 2, ANONYMOUS = 4, PROFILE = 8, TOKEN_FILE = 16, QUERY_FILE = 32 };

static const struct {
	const char *name; /* for status and messages */
	enum provided (*ask)(struct seek *seek);
	unsigned ways;
} providers[] = {
	{"environment", from_environment, S3 | GOOGLE},
	{"profile", from_profile, S3 | GOOGLE | PROFILE},
	{"web identity", from_web_identity, S3},
	{"container", from_container, S3},
	{"instance", from_instance, S3},
	{"Google metadata", from_google, GOOGLE},
	{"", nobody, S3 | GOOGLE},
	{"anonymous", anonymous, ANONYMOUS},
	{"token file", from_file, TOKEN_FILE},
	{"query file", from_file, QUERY_FILE},
};

static unsigned way_of(const struct seek *seek)
{
	const struct config_store *store = seek->bucket->place.store;

	if (store && store->token_file)
		return TOKEN_FILE;
	if (store && store->query_file)
		return QUERY_FILE;
	if (seek->bucket->place.kind == URL_HTTPS || (store && store->anonymous))
		return ANONYMOUS;
	if (store && store->profile)
		return PROFILE;
	return seek->bucket->place.kind == URL_GS ? GOOGLE : S3;
}

enum provided providers_search(struct seek *seek)
{
	enum provided result = PROVIDED_NOTHING;
	unsigned way = way_of(seek);

	memset(&seek->found, 0, sizeof(seek->found));
	seek->found.expires = INT64_MAX;
	for (size_t i = 0; result == PROVIDED_NOTHING; i++) {
		if (!(providers[i].ways & way))
			continue;
		strcpy(seek->found.provider, providers[i].name);
		result = providers[i].ask(seek);
	}
	if (result != PROVIDED && seek->found.provider[0])
		fault_prefix(&seek->fault, "credentials (%s): ", seek->found.provider);
	return result;
}
