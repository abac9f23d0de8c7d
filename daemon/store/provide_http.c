/* Providers that are servers: STS, a container's agent, the instance metadata of AWS and Google. */
#include "daemon/store/http_ask.h"
#include "daemon/store/providers_own.h"
#include "daemon/store/secret.h"
#include "daemon/store/url.h"

#include <expat.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	FORM_BYTES = 64 << 10,
	TOKEN_BYTES = 16 << 10,
	LINE_BYTES = TOKEN_BYTES + 64,
	SERVER_MS = 10 * 1000,
	METADATA_MS = 1000, /* it is on the same host */
	METADATA_TRIES = 2,
	METADATA_TOKEN_S = 21600,
};

/* The buffers of a request, in one piece of secret memory. */
struct work {
	char body[HTTP_BODY_BYTES];
	char form[FORM_BYTES];
	char token[TOKEN_BYTES];
	char line[LINE_BYTES];
	char url[2048];
	/* Of STS's answer. */
	char access[SIGN_ACCESS_BYTES], secret[SIGN_SECRET_BYTES], session[SIGN_TOKEN_BYTES];
	char expiration[64], code[64];
	char *member;
	size_t room, n;
};

/* NULL instead of "". */
static const char *set(const char *value)
{
	return value && *value ? value : NULL;
}

/* ---- answers ---- */

bool provide_time(const char *text, int64_t *seconds)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest)
		return false;
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	if (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0 && strcmp(rest, "+0000") != 0)
		return false;
	*seconds = timegm(&tm);
	return true;
}

static const char *member(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

enum provided provide_json(
	struct seek *search, const char *text, size_t n, const char *token, const char *who)
{
	json_t *object = json_loadb(text, n, 0, NULL);
	const char *expiration = member(object, "Expiration");
	enum provided result = PROVIDED;

	if (!json_is_object(object))
		result = seek_later(search, "%s: the answer is not a JSON object", who);
	else if (*expiration && !provide_time(expiration, &search->expires))
		result = seek_later(
			search, "%s: Expiration is not a time such as 2026-01-01T00:00:00Z", who);
	else if (!seek_keys(search, member(object, "AccessKeyId"),
			 member(object, "SecretAccessKey"), member(object, token)))
		result = seek_later(
			search, "%s: the answer has no valid AccessKeyId and SecretAccessKey", who);
	json_decref(object);
	return result;
}

/* A status that is not 200: the same request fails again if it is the fault of the request. */
static enum provided judge(
	struct seek *search, const char *who, int status, const char *code, const char *why)
{
	if (status == 0)
		return seek_later(search, "%s: %s", who, why);
	if (status >= 400 && status < 500 && status != 408 && status != 429 &&
		!strstr(code, "Expired") && !strstr(code, "IDPCommunication"))
		return seek_wrong(search, "%s: %d%s%s", who, status, *code ? " " : "", code);
	return seek_later(search, "%s: %d%s%s", who, status, *code ? " " : "", code);
}

/* ---- web identity ---- */

static void on_begin(void *context, const char *name, const char **attributes)
{
	struct work *w = context;
	const struct {
		const char *name;
		char *to;
		size_t room;
	} members[] = {
		{"AccessKeyId", w->access, sizeof(w->access)},
		{"SecretAccessKey", w->secret, sizeof(w->secret)},
		{"SessionToken", w->session, sizeof(w->session)},
		{"Expiration", w->expiration, sizeof(w->expiration)},
		{"Code", w->code, sizeof(w->code)},
	};

	(void)attributes;
	w->member = NULL;
	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		if (strcmp(members[i].name, name) != 0)
			continue;
		w->member = members[i].to;
		w->room = members[i].room;
		w->n = 0;
		w->member[0] = 0;
	}
}

static void on_end(void *context, const char *name)
{
	(void)name;
	((struct work *)context)->member = NULL;
}

/* A value that is too long is left empty, and so refused later. */
static void on_text(void *context, const char *text, int n)
{
	struct work *w = context;

	if (!w->member)
		return;
	if (w->n + (size_t)n >= w->room) {
		w->member[0] = 0;
		w->member = NULL;
		return;
	}
	memcpy(w->member + w->n, text, (size_t)n);
	w->n += (size_t)n;
	w->member[w->n] = 0;
}

static bool read_xml(struct work *w)
{
	static const XML_Memory_Handling_Suite memory = {
		malloc, secret_heap_realloc, secret_heap_free};
	XML_Parser parser = XML_ParserCreate_MM(NULL, &memory, NULL);
	bool done;

	if (!parser)
		return false;
	XML_SetUserData(parser, w);
	XML_SetElementHandler(parser, on_begin, on_end);
	XML_SetCharacterDataHandler(parser, on_text);
	done = XML_Parse(parser, w->body, (int)strlen(w->body), 1) == XML_STATUS_OK;
	XML_ParserFree(parser);
	return done;
}

static void write_sts_url(const struct seek *search, char *url, size_t bytes)
{
	const char *endpoint = set(getenv("AWS_ENDPOINT_URL_STS"));
	const char *region = search->region;

	if (!endpoint)
		endpoint = set(getenv("AWS_ENDPOINT_URL"));
	if (endpoint)
		snprintf(url, bytes, "%s%s", endpoint,
			endpoint[strlen(endpoint) - 1] == '/' ? "" : "/");
	else
		snprintf(url, bytes, "https://sts.%s.amazonaws.com%s/", region,
			strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
}

/* POST, not GET: a URL may be in someone's log, and the token is a secret. */
static enum provided ask_sts(struct seek *search, struct work *w, const char *role,
	const char *file, const char *session)
{
	char who[128 + sizeof("web identity of ")];
	struct fault fault = {0};
	long n = secret_read(file, w->token, sizeof(w->token), &search->fault);

	snprintf(who, sizeof(who), "web identity of %.120s", role);
	if (n < 0)
		return PROVIDED_LATER;
	w->token[strcspn(w->token, "\r\n")] = 0;
	if (!url_query(w->form, sizeof(w->form), "Action", "AssumeRoleWithWebIdentity") ||
		!url_query(w->form, sizeof(w->form), "RoleArn", role) ||
		!url_query(w->form, sizeof(w->form), "RoleSessionName", session) ||
		!url_query(w->form, sizeof(w->form), "Version", "2011-06-15") ||
		!url_query(w->form, sizeof(w->form), "WebIdentityToken", w->token))
		return seek_wrong(search, "%s: %s is too large", who, file);
	write_sts_url(search, w->url, sizeof(w->url));
	int status =
		http_ask(&(struct http_ask){.url = w->url,
				 .form = w->form,
				 .headers = {"Content-Type: application/x-www-form-urlencoded"},
				 .patience_ms = SERVER_MS,
				 .stop = search->stop},
			w->body, &fault);
	bool read = status > 0 && read_xml(w);

	if (status != 200)
		return judge(search, who, status, w->code, fault.text);
	if (!read || !provide_time(w->expiration, &search->expires) ||
		!seek_keys(search, w->access, w->secret, w->session))
		return seek_later(
			search, "%s: the answer of %s has no valid credentials", who, w->url);
	return PROVIDED;
}

enum provided provide_web_identity(
	struct seek *search, const char *role, const char *file, const char *session)
{
	struct work *work;
	enum provided result;

	if (!set(role) && !set(file))
		return PROVIDED_NOTHING;
	strcpy(search->provider, "web identity");
	if (!set(role) || !set(file))
		return seek_wrong(search,
			"web identity needs both AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE (or "
			"role_arn and web_identity_token_file); set both");
	work = secret_new(sizeof(*work));
	if (!work)
		return seek_later(search, "out of memory");
	result = ask_sts(search, work, role, file, set(session) ? session : "tokend");
	secret_free(work, sizeof(*work));
	return result;
}

enum provided provide_web_identity_environment(struct seek *search)
{
	const char *file = getenv("AWS_WEB_IDENTITY_TOKEN_FILE");

	/* AWS_ROLE_ARN alone may be for other programs. */
	return set(file) ? provide_web_identity(search, getenv("AWS_ROLE_ARN"), file,
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

/* False: the token's file cannot be read. */
static bool read_container_token(struct seek *search, struct work *w, const char **header)
{
	const char *file = set(getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
	const char *token = set(getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN"));

	if (file && secret_read(file, w->token, sizeof(w->token), &search->fault) < 0)
		return false;
	if (!file && token)
		snprintf(w->token, sizeof(w->token), "%s", token);
	w->token[strcspn(w->token, "\r\n")] = 0;
	snprintf(w->line, sizeof(w->line), "Authorization: %s", w->token);
	*header = w->token[0] ? w->line : NULL;
	return true;
}

static enum provided ask_container(struct seek *search, struct work *w)
{
	static const char who[] = "container";
	struct fault fault = {0};
	const char *header;

	if (!container_url_ok(w->url))
		return seek_wrong(search,
			"AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this host; "
			"such a server gets no token");
	if (!read_container_token(search, w, &header))
		return PROVIDED_LATER;
	int status = http_ask(&(struct http_ask){.url = w->url,
				      .headers = {header},
				      .direct = true,
				      .patience_ms = SERVER_MS,
				      .stop = search->stop},
		w->body, &fault);

	if (status != 200)
		return judge(search, who, status, "", fault.text);
	return provide_json(search, w->body, strlen(w->body), "Token", who);
}

enum provided provide_container(struct seek *search)
{
	const char *relative = set(getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"));
	const char *full = set(getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
	struct work *work;
	enum provided result;

	if (!relative && !full)
		return PROVIDED_NOTHING;
	strcpy(search->provider, "container");
	work = secret_new(sizeof(*work));
	if (!work)
		return seek_later(search, "out of memory");
	snprintf(work->url, sizeof(work->url), "%s%s", relative ? "http://169.254.170.2" : "",
		relative ? relative : full);
	result = ask_container(search, work);
	secret_free(work, sizeof(*work));
	return result;
}

/* ---- instance metadata ---- */

/* Asks for @path at @endpoint. */
static int ask_metadata(const struct seek *search, struct work *w, const char *endpoint,
	const char *path, const char *method, const char *header, struct fault *fault)
{
	int status = 0;

	snprintf(w->url, sizeof(w->url), "%s/%s", endpoint, path);
	for (int i = 0; status == 0 && i < METADATA_TRIES; i++)
		status = http_ask(&(struct http_ask){.url = w->url,
					  .method = method,
					  .headers = {header, method ? "Content-Length: 0" : NULL},
					  .direct = true,
					  .patience_ms = METADATA_MS,
					  .stop = search->stop},
			w->body, fault);
	return status;
}

/* IMDSv2: a token of the session, the role's name, its keys. */
static enum provided ask_instance(struct seek *search, struct work *w, const char *endpoint)
{
	static const char roles[] = "latest/meta-data/iam/security-credentials/";
	static const char who[] = "instance metadata";
	char path[512], ttl[64];
	struct fault fault = {0};
	/* Once it was there, silence is a failure that ends. */
	enum provided absent = search->met ? PROVIDED_LATER : PROVIDED_NOTHING;
	int status;

	snprintf(ttl, sizeof(ttl), "X-aws-ec2-metadata-token-ttl-seconds: %d", METADATA_TOKEN_S);
	status = ask_metadata(search, w, endpoint, "latest/api/token", "PUT", ttl, &fault);
	if (status != 200) {
		seek_later(search, "%s: %s %d", who, fault.text, status);
		return status >= 500 ? PROVIDED_LATER : absent;
	}
	w->body[strcspn(w->body, "\r\n")] = 0;
	snprintf(w->line, sizeof(w->line), "X-aws-ec2-metadata-token: %.16000s", w->body);
	status = ask_metadata(search, w, endpoint, roles, NULL, w->line, &fault);
	if (status == 404)
		return absent; /* the instance has no role */
	if (status != 200)
		return judge(search, who, status, "", fault.text);
	w->body[strcspn(w->body, "\r\n")] = 0;
	snprintf(path, sizeof(path), "%s%.300s", roles, w->body);
	status = ask_metadata(search, w, endpoint, path, NULL, w->line, &fault);
	if (status != 200)
		return seek_later(search, "%s: %d %s", who, status, fault.text);
	search->met = true;
	return provide_json(search, w->body, strlen(w->body), "Token", who);
}

enum provided provide_instance(struct seek *search)
{
	const char *disabled = set(getenv("AWS_EC2_METADATA_DISABLED"));
	const char *endpoint = set(getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"));
	char base[512];
	struct work *work;
	enum provided result;

	if (disabled && strcasecmp(disabled, "true") == 0)
		return PROVIDED_NOTHING;
	strcpy(search->provider, "instance");
	work = secret_new(sizeof(*work));
	if (!work)
		return seek_later(search, "out of memory");
	snprintf(base, sizeof(base), "%s", endpoint ? endpoint : "http://169.254.169.254");
	if (base[0] && base[strlen(base) - 1] == '/')
		base[strlen(base) - 1] = 0;
	result = ask_instance(search, work, base);
	secret_free(work, sizeof(*work));
	return result;
}

/* ---- Google ---- */

static enum provided ask_google(struct seek *search, struct work *w)
{
	static const char path[] = "computeMetadata/v1/instance/service-accounts/default/token";
	const char *host = set(getenv("GCE_METADATA_HOST"));
	char base[512];
	struct fault fault = {0};

	snprintf(base, sizeof(base), "http://%s", host ? host : "metadata.google.internal");
	int status = ask_metadata(search, w, base, path, NULL, "Metadata-Flavor: Google", &fault);

	if (status != 200) {
		seek_later(search, "Google metadata: %s %d", fault.text, status);
		return status >= 500 || search->met ? PROVIDED_LATER : PROVIDED_NOTHING;
	}
	json_t *object = json_loads(w->body, 0, NULL);
	const char *token = member(object, "access_token");
	json_int_t left = json_integer_value(json_object_get(object, "expires_in"));
	enum provided result = PROVIDED;

	if (left <= 0 || !seek_bearer(search, token, strlen(token)))
		result = seek_later(
			search, "Google metadata: the answer has no access_token and expires_in");
	search->expires = time(NULL) + left;
	search->met = true;
	json_decref(object);
	return result;
}

enum provided provide_google(struct seek *search)
{
	struct work *work = secret_new(sizeof(*work));
	enum provided result;

	strcpy(search->provider, "Google metadata");
	if (!work)
		return seek_later(search, "out of memory");
	result = ask_google(search, work);
	secret_free(work, sizeof(*work));
	return result;
}
