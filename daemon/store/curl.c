#include "daemon/store/internal.h"

#include "proto/version.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name;
	size_t at; /* in struct curl */
} functions[] = {
#define FUNCTION(name) {"curl_" #name, offsetof(struct curl, name)},
	CURL_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

/* Debian's libcurl4 first, then what RHEL, SUSE and Alpine have, which has the same name. */
static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static bool load(struct curl *curl, struct fault *fault)
{
	void *library = NULL;

	for (unsigned i = 0; !library && i < sizeof(libraries) / sizeof(libraries[0]); i++)
		library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fault_errno(fault, ELIBACC, "stores",
			"objects in stores need libcurl.so.4, which was not found; install "
			"libcurl4 (Debian), libcurl (RHEL, Alpine) or libcurl4 (SUSE)");
	for (unsigned i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function)
			return fault_errno(fault, ELIBACC, "stores",
				"libcurl has no function %s; install libcurl 7.68 or later",
				functions[i].name);
		memcpy((char *)curl + functions[i].at, &function, sizeof(function));
	}
	if (curl->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return fault_errno(fault, ELIBACC, "stores",
			"libcurl cannot be initialised; install it again");
	return true;
}

const struct curl *curl_load(struct fault *fault)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct curl curl; /* one per process, as libcurl's own global state */
	static bool loaded;

	pthread_mutex_lock(&mutex);
	if (!loaded)
		loaded = load(&curl, fault);
	bool ready = loaded;

	pthread_mutex_unlock(&mutex);
	return ready ? &curl : NULL;
}

/* ---- certificates ---- */

/* Of Debian, RHEL, SUSE and Alpine. NULL: not found. */
static const char *system_bundle(void)
{
	static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

	for (unsigned i = 0; i < sizeof(bundles) / sizeof(bundles[0]); i++)
		if (access(bundles[i], R_OK) == 0)
			return bundles[i];
	return NULL;
}

/* Whether a directory has certificates by the hashes of their names, "ab12cd34.0". */
static bool has_hashes(const char *path)
{
	DIR *directory = opendir(path);
	bool found = false;
	struct dirent *entry;

	while (directory && !found && (entry = readdir(directory)))
		found = strlen(entry->d_name) == 10 && strcmp(entry->d_name + 8, ".0") == 0;
	if (directory)
		closedir(directory);
	return found;
}

/* Which certificates are trusted. libcurl parses a file anew for each handle, and a system's file
 * costs 15 ms and a megabyte. So the system's directory is preferred. */
static void trust(const struct curl *curl, CURL *easy, const char *ca)
{
	const char *file = ca ? ca : getenv("SSL_CERT_FILE"), *directory = NULL;

	if (!file || !*file) {
		directory = has_hashes("/etc/ssl/certs") ? "/etc/ssl/certs" : NULL;
		file = directory ? NULL : system_bundle();
	}
	if (file || directory) {
		curl->easy_setopt(easy, CURLOPT_CAINFO, file);
		curl->easy_setopt(easy, CURLOPT_CAPATH, directory);
	}
	curl->easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, -1L);
}

CURL *curl_handle(const struct curl *curl, const char *ca)
{
	CURL *easy = curl->easy_init();

	if (!easy)
		return NULL;
	trust(curl, easy, ca);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name server */
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	return easy;
}
