#include "daemon/store/internal.h"

#include "proto/version.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	ANSWER_BYTES = 64 << 10,
	TOKEN_BYTES = 16 << 10,
	SERVER_MS = 10 * 1000,
	METADATA_MS = 1000, /* it is on the same host */
	METADATA_TRIES = 2,
	METADATA_TOKEN_S = 21600,
	PROCESS_MS = 30 * 1000,
	PROCESS_END_MS = 1000, /* from the end of its output to its own */
	STOP_MS = 100,	       /* between two checks of `stop`, while a program runs */
};

extern char **environ;

/* The buffers of a search. */
struct seek_work {
	char answer[ANSWER_BYTES]; /* of a file, a program or a server */
	size_t answer_n;
	char form[4 * TOKEN_BYTES];
	char token[TOKEN_BYTES];
	char header[TOKEN_BYTES + 64];
	char url[2048];
};

/* A failure that may end, and one that does not end by itself. */
#define LATER(seek, ...) (fault_set(&(seek)->fault, FAULT_IO, "", __VA_ARGS__), PROVIDED_LATER)
#define WRONG(seek, ...)                                                                           \
	(fault_set(&(seek)->fault, FAULT_PERMISSION, "", __VA_ARGS__), PROVIDED_WRONG)

/* NULL instead of "". */
static const char *set(const char *value)
{
	return value && *value ? value : NULL;
}

/* ---- results ---- */

/* Whether the text can be a header's value of fewer than @bytes. */
static bool fits(const char *text, size_t bytes)
{
	size_t n = strlen(text);

	for (size_t i = 0; i < n; i++)
		if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f)
			return false;
	return n > 0 && n < bytes;
}

/* False: one of them is empty, too long or has control characters. */
static bool use_keys(struct seek *seek, const char *access, const char *secret, const char *token)
{
	struct sign_keys *keys = &seek->found.keys;

	if (!fits(access, sizeof(keys->access)) || !fits(secret, sizeof(keys->secret)) ||
		(set(token) && !fits(token, SIGN_TOKEN_BYTES)))
		return false;
	strcpy(keys->access, access);
	strcpy(keys->secret, secret);
	if (set(token))
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

/* Reads "2026-01-01T00:00:00Z" into seek->expires. False: it is something else. */
static bool use_expiration(struct seek *seek, const char *text)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest)
		return false;
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	seek->expires = timegm(&tm);
	return strcmp(rest, "Z") == 0 || strcmp(rest, "+00:00") == 0 || strcmp(rest, "+0000") == 0;
}

static const char *member(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

enum provided provide_json(struct seek *seek, const char *text, const char *token, const char *who)
{
	json_t *object = json_loads(text, 0, NULL);
	const char *expiration = member(object, "Expiration");
	enum provided result = PROVIDED;

	if (!json_is_object(object))
		result = LATER(seek, "%s: the answer is not a JSON object", who);
	else if (*expiration && !use_expiration(seek, expiration))
		result = LATER(
			seek, "%s: Expiration is not a time such as 2026-01-01T00:00:00Z", who);
	else if (!use_keys(seek, member(object, "AccessKeyId"), member(object, "SecretAccessKey"),
			 member(object, token)))
		result = LATER(
			seek, "%s: the answer has no valid AccessKeyId and SecretAccessKey", who);
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
static const char *collect(const struct seek *seek, int out)
{
	int64_t end_ms = stores_now_ms() + PROCESS_MS;
	struct pollfd wait = {.fd = out, .events = POLLIN};
	struct seek_work *w = seek->work;

	for (w->answer_n = 0; w->answer_n < sizeof(w->answer);) {
		if (atomic_load(seek->stop) || stores_now_ms() >= end_ms)
			return "did not end in 30 s";
		if (poll(&wait, 1, STOP_MS) <= 0)
			continue;
		ssize_t got = read(out, w->answer + w->answer_n, sizeof(w->answer) - w->answer_n);

		if (got < 0)
			return "has no readable output";
		if (got == 0) {
			w->answer[w->answer_n] = 0;
			return NULL;
		}
		w->answer_n += (size_t)got;
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
static enum provided ask_process(struct seek *seek, const char *command, const char *profile)
{
	int fds[2], error;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return LATER(seek, "profile %s: no pipe for credential_process: %s", profile,
			strerror(errno));
	error = start(command, fds[1], &pid);
	close(fds[1]);
	const char *wrong = error ? strerror(error) : collect(seek, fds[0]);
	int status = error ? 0 : end(pid, !wrong);

	close(fds[0]);
	if (wrong)
		return LATER(seek, "profile %s: credential_process %s%s", profile,
			error ? "cannot start: " : "", wrong);
	if (status != 0)
		return LATER(seek,
			"profile %s: credential_process ended with status %d; run it by hand",
			profile, status);
	return provide_json(seek, seek->work->answer, "SessionToken", "credential_process");
}

/* ---- servers ---- */

struct request {
	const char *method;	/* NULL: GET, or POST if there is a form */
	const char *form;	/* the body; NULL: none */
	const char *headers[3]; /* up to the first NULL */
	bool direct;		/* never through a proxy */
	long patience_ms;
};

/* Refuses what does not fit, with the zero after it. */
static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct seek_work *w = context;

	(void)size;
	if (n >= sizeof(w->answer) - w->answer_n)
		return 0;
	memcpy(w->answer + w->answer_n, from, n);
	w->answer_n += n;
	w->answer[w->answer_n] = 0;
	return n;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	(void)a, (void)b, (void)c, (void)d;
	return atomic_load((const atomic_bool *)context);
}

static void set_options(
	const struct curl *curl, CURL *easy, const struct seek *seek, const struct request *request)
{
	const char *certificates = certificates_system();

	curl->easy_setopt(easy, CURLOPT_URL, seek->work->url);
	if (request->form)
		curl->easy_setopt(easy, CURLOPT_POSTFIELDS, request->form);
	if (request->method)
		curl->easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
	if (request->direct)
		curl->easy_setopt(easy, CURLOPT_PROXY, "");
	if (certificates)
		curl->easy_setopt(easy, CURLOPT_CAINFO, certificates);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name server */
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, request->patience_ms);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, seek->work);
	curl->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl->easy_setopt(easy, CURLOPT_XFERINFODATA, seek->stop);
	curl->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
}

/* Asks work->url. Fills work->answer, and returns the status. 0: no answer, seek->fault. */
static int ask(struct seek *seek, const struct request *request)
{
	const struct curl *curl = curl_load(&seek->fault);
	CURL *easy = curl ? curl->easy_init() : NULL;
	struct curl_slist *headers = NULL;
	long status = 0;

	seek->work->answer_n = 0;
	seek->work->answer[0] = 0;
	if (!curl)
		return 0;
	for (int i = 0; request->headers[i]; i++)
		headers = curl->slist_append(headers, request->headers[i]);
	if (!easy || (request->headers[0] && !headers)) {
		fault_memory(&seek->fault);
	} else {
		set_options(curl, easy, seek, request);
		curl->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
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
static enum provided judge(struct seek *seek, const char *who, int status, const char *code)
{
	bool passing = status < 400 || status >= 500 || status == 408 || status == 429 ||
		       strstr(code, "Expired") || strstr(code, "IDPCommunication");

	if (status == 0) {
		fault_prefix(&seek->fault, "%s: ", who);
		return PROVIDED_LATER;
	}
	return passing ? LATER(seek, "%s: %d%s%s", who, status, *code ? " " : "", code)
		       : WRONG(seek, "%s: %d%s%s", who, status, *code ? " " : "", code);
}

/* ---- web identity ---- */

static void write_sts_url(const struct seek *seek, char *url, size_t bytes)
{
	const char *endpoint = set(getenv("AWS_ENDPOINT_URL_STS"));

	if (!endpoint)
		endpoint = set(getenv("AWS_ENDPOINT_URL"));
	if (endpoint)
		snprintf(url, bytes, "%s%s", endpoint,
			endpoint[strlen(endpoint) - 1] == '/' ? "" : "/");
	else
		snprintf(url, bytes, "https://sts.%s.amazonaws.com%s/", seek->region,
			strncmp(seek->region, "cn-", 3) == 0 ? ".cn" : "");
}

/* The elements of STS's answer. A value that is too long is cut, to more than a key may have. */
static bool use_sts(struct seek *seek)
{
	const struct seek_work *w = seek->work;
	char access[SIGN_ACCESS_BYTES + 1], secret[SIGN_SECRET_BYTES + 1], expiration[64];
	char *token = seek->work->token;

	answer_element(w->answer, w->answer_n, "<AccessKeyId>", access, sizeof(access));
	answer_element(w->answer, w->answer_n, "<SecretAccessKey>", secret, sizeof(secret));
	answer_element(w->answer, w->answer_n, "<SessionToken>", token, TOKEN_BYTES);
	answer_element(w->answer, w->answer_n, "<Expiration>", expiration, sizeof(expiration));
	return use_expiration(seek, expiration) && use_keys(seek, access, secret, token);
}

/* A role of the token in a file. POST, not GET: a URL may be in someone's log, and the token is a
 * secret. The strings may be NULL or "": not given. */
static enum provided ask_web_identity(
	struct seek *seek, const char *role, const char *file, const char *session)
{
	struct seek_work *w = seek->work;
	char who[128 + sizeof("web identity of ")], code[64];

	if (!set(role) || !set(file))
		return WRONG(seek,
			"web identity needs both AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE (or "
			"role_arn and web_identity_token_file); set both");
	snprintf(who, sizeof(who), "web identity of %.120s", role);
	if (!profile_text(file, w->token, sizeof(w->token), &seek->fault))
		return PROVIDED_LATER;
	const struct {
		const char *name, *value;
	} form[] = {
		{"Action", "AssumeRoleWithWebIdentity"},
		{"RoleArn", role},
		{"RoleSessionName", set(session) ? session : "tokend"},
		{"Version", "2011-06-15"},
		{"WebIdentityToken", profile_trim(w->token, strlen(w->token))},
	};

	for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++)
		if (!url_query(w->form, sizeof(w->form), form[i].name, form[i].value))
			return WRONG(seek, "%s: %s is too large", who, file);
	write_sts_url(seek, w->url, sizeof(w->url));
	int status =
		ask(seek, &(struct request){.form = w->form,
				  .headers = {"Content-Type: application/x-www-form-urlencoded"},
				  .patience_ms = SERVER_MS});

	answer_element(w->answer, w->answer_n, "<Code>", code, sizeof(code));
	if (status != 200)
		return judge(seek, who, status, code);
	if (!use_sts(seek))
		return LATER(seek, "%s: the answer of %s has no valid credentials", who, w->url);
	return PROVIDED;
}

static enum provided from_web_identity(struct seek *seek)
{
	const char *file = getenv("AWS_WEB_IDENTITY_TOKEN_FILE");

	/* AWS_ROLE_ARN alone may be for other programs. */
	return set(file) ? ask_web_identity(seek, getenv("AWS_ROLE_ARN"), file,
				   getenv("AWS_ROLE_SESSION_NAME"))
			 : PROVIDED_NOTHING;
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
	const char *relative = set(getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"));
	const char *full = set(getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
	const char *file = set(getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
	const char *token = set(getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
	struct seek_work *w = seek->work;

	if (!relative && !full)
		return PROVIDED_NOTHING;
	snprintf(w->url, sizeof(w->url), "%s%s", relative ? "http://169.254.170.2" : "",
		relative ? relative : full);
	if (!container_url_ok(w->url))
		return WRONG(seek,
			"AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this host; "
			"such a server gets no token");
	if (file && !profile_text(file, w->token, sizeof(w->token), &seek->fault))
		return PROVIDED_LATER;
	if (!file)
		snprintf(w->token, sizeof(w->token), "%s", token ? token : "");
	token = profile_trim(w->token, strlen(w->token));
	snprintf(w->header, sizeof(w->header), "Authorization: %s", token);
	int status = ask(seek, &(struct request){.headers = {*token ? w->header : NULL},
				       .direct = true,
				       .patience_ms = SERVER_MS});

	return status == 200 ? provide_json(seek, w->answer, "Token", "container")
			     : judge(seek, "container", status, "");
}

/* ---- metadata of an instance ---- */

/* Asks for @path at @endpoint. The answer is a line if it is a name. */
static int ask_metadata(struct seek *seek, const char *endpoint, const char *path,
	const char *method, const char *header)
{
	struct seek_work *w = seek->work;
	int status = 0;

	snprintf(w->url, sizeof(w->url), "%s/%s", endpoint, path);
	for (int i = 0; status == 0 && i < METADATA_TRIES; i++)
		status = ask(seek, &(struct request){.method = method,
					   .headers = {header, method ? "Content-Length: 0" : NULL},
					   .direct = true,
					   .patience_ms = METADATA_MS});
	return status;
}

/* There is no such service. Once it was there, its silence is a failure that ends. */
static enum provided absent(struct seek *seek, const char *who, int status)
{
	judge(seek, who, status, "");
	return status >= 500 || seek->met ? PROVIDED_LATER : PROVIDED_NOTHING;
}

/* IMDSv2: a token of the session, the role's name, its keys. */
static enum provided from_instance(struct seek *seek)
{
	static const char roles[] = "latest/meta-data/iam/security-credentials/";
	static const char who[] = "instance metadata";
	const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
	const char *endpoint = set(getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"));
	char path[512], ttl[64], base[512];
	struct seek_work *w = seek->work;

	if (disabled && strcasecmp(disabled, "true") == 0)
		return PROVIDED_NOTHING;
	snprintf(base, sizeof(base), "%s", endpoint ? endpoint : "http://169.254.169.254");
	if (base[strlen(base) - 1] == '/')
		base[strlen(base) - 1] = 0;
	snprintf(ttl, sizeof(ttl), "X-aws-ec2-metadata-token-ttl-seconds: %d", METADATA_TOKEN_S);
	int status = ask_metadata(seek, base, "latest/api/token", "PUT", ttl);

	if (status != 200)
		return absent(seek, who, status);
	w->answer[strcspn(w->answer, "\r\n")] = 0;
	snprintf(w->header, sizeof(w->header), "X-aws-ec2-metadata-token: %.16000s", w->answer);
	status = ask_metadata(seek, base, roles, NULL, w->header);
	if (status == 404) /* the instance has no role */
		return absent(seek, who, status);
	if (status != 200)
		return judge(seek, who, status, "");
	w->answer[strcspn(w->answer, "\r\n")] = 0;
	snprintf(path, sizeof(path), "%s%.300s", roles, w->answer);
	status = ask_metadata(seek, base, path, NULL, w->header);
	if (status != 200) {
		judge(seek, who, status, "");
		return PROVIDED_LATER;
	}
	seek->met = true;
	return provide_json(seek, w->answer, "Token", who);
}

static enum provided from_google(struct seek *seek)
{
	static const char path[] = "computeMetadata/v1/instance/service-accounts/default/token";
	static const char who[] = "Google metadata";
	const char *host = set(getenv("GCE_METADATA_HOST"));
	char base[512];

	snprintf(base, sizeof(base), "http://%s", host ? host : "metadata.google.internal");
	int status = ask_metadata(seek, base, path, NULL, "Metadata-Flavor: Google");

	if (status != 200)
		return absent(seek, who, status);
	json_t *object = json_loads(seek->work->answer, 0, NULL);
	json_int_t left = json_integer_value(json_object_get(object, "expires_in"));
	enum provided result = PROVIDED;

	if (left <= 0 || !use_bearer(seek, member(object, "access_token")))
		result = LATER(seek, "%s: the answer has no access_token and expires_in", who);
	seek->expires = time(NULL) + left;
	seek->met = true;
	json_decref(object);
	return result;
}

/* ---- environment and files ---- */

static enum provided from_environment(struct seek *seek)
{
	const char *access = set(getenv("AWS_ACCESS_KEY_ID"));
	const char *secret = set(getenv("AWS_SECRET_ACCESS_KEY"));

	if (!access || !secret)
		return PROVIDED_NOTHING;
	if (!use_keys(seek, access, secret, getenv("AWS_SESSION_TOKEN")))
		return WRONG(seek,
			"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN has blanks "
			"or control characters, or is too long; set them again");
	return PROVIDED;
}

static enum provided use_profile(struct seek *seek, const struct profile *p)
{
	if (p->access[0] && p->secret[0]) {
		if (use_keys(seek, p->access, p->secret, p->token))
			return PROVIDED;
		return WRONG(seek,
			"profile %s: its keys have blanks or control characters; write them again",
			p->name);
	}
	if (p->access[0] || p->secret[0])
		return WRONG(seek,
			"profile %s has only one of aws_access_key_id and aws_secret_access_key; "
			"set both",
			p->name);
	if (p->process[0])
		return ask_process(seek, p->process, p->name);
	if (p->token_file[0]) {
		strcpy(seek->provider, "web identity");
		return ask_web_identity(seek, p->role, p->token_file, p->session);
	}
	if (p->sso[0] || p->source[0])
		return WRONG(seek,
			"profile %s uses %s, which is not supported; use credential_process = aws "
			"configure export-credentials --profile %s --format process in another "
			"profile",
			p->name, p->sso[0] ? "SSO" : "source_profile", p->name);
	return PROVIDED_NOTHING;
}

static enum provided from_profile(struct seek *seek)
{
	const char *named = seek->store ? seek->store->profile : NULL;
	struct profile profile;

	if (!profile_read(named, &profile, &seek->fault))
		return PROVIDED_WRONG;
	snprintf(seek->provider, sizeof(seek->provider), "profile %.50s", profile.name);
	enum provided result = use_profile(seek, &profile);

	/* One that `stores:` or the environment names must exist. */
	if (result == PROVIDED_NOTHING && (named || set(getenv("AWS_PROFILE"))))
		result = WRONG(seek, "profile %s %s", profile.name,
			profile.found ? "has no credentials; set aws_access_key_id and "
					"aws_secret_access_key, or credential_process"
				      : "is in none of the AWS files; add it, or name another "
					"profile");
	return result;
}

/* Token and query files of `stores:`. One that is being replaced is there soon. */
static enum provided from_file(struct seek *seek)
{
	const char *tokens = seek->store->token_file;
	const char *path = tokens ? tokens : seek->store->query_file;
	char *text = seek->work->answer;

	if (!profile_text(path, text, ANSWER_BYTES, &seek->fault))
		return PROVIDED_LATER;
	text = profile_trim(text, strlen(text));
	if (tokens ? use_bearer(seek, text) : use_query(seek, text))
		return PROVIDED;
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
		seek->store	       ? seek->store->name
		: seek->kind == URL_GS ? "gs"
				       : "s3");
}

/* Which providers are asked: all of S3 or Google in turn, or the one that `stores:` names. */
enum { S3 = 1, GOOGLE = 2, ANONYMOUS = 4, PROFILE = 8, TOKEN_FILE = 16, QUERY_FILE = 32 };

static const struct {
	const char *name; /* for status */
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
	const struct config_store *store = seek->store;

	if (store && store->token_file)
		return TOKEN_FILE;
	if (store && store->query_file)
		return QUERY_FILE;
	if (seek->kind == URL_HTTPS || (store && store->anonymous))
		return ANONYMOUS;
	if (store && store->profile)
		return PROFILE;
	return seek->kind == URL_GS ? GOOGLE : S3;
}

enum provided providers_search(struct seek *seek)
{
	enum provided result = PROVIDED_NOTHING;
	unsigned way = way_of(seek);

	memset(&seek->found, 0, sizeof(seek->found));
	seek->expires = INT64_MAX;
	seek->work = calloc(1, sizeof(*seek->work));
	if (!seek->work)
		return LATER(seek, "out of memory");
	for (size_t i = 0; result == PROVIDED_NOTHING; i++) {
		if (!(providers[i].ways & way))
			continue;
		strcpy(seek->provider, providers[i].name);
		result = providers[i].ask(seek);
	}
	free(seek->work);
	return result;
}
