#include "daemon/store/internal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CERTIFICATES_BYTES = 16 * 1024 * 1024 };

/* clang-format off */
#define FUNCTION(name) {"curl_" #name, offsetof(struct curl, name)}
/* clang-format on */

static const struct {
	const char *name;
	size_t at; /* in struct curl */
} functions[] = {
	FUNCTION(global_init),
	FUNCTION(easy_init),
	FUNCTION(easy_cleanup),
	FUNCTION(easy_perform),
	FUNCTION(easy_setopt),
	FUNCTION(easy_getinfo),
	FUNCTION(easy_strerror),
	FUNCTION(slist_append),
	FUNCTION(slist_free_all),
	FUNCTION(multi_init),
	FUNCTION(multi_cleanup),
	FUNCTION(multi_add_handle),
	FUNCTION(multi_remove_handle),
	FUNCTION(multi_perform),
	FUNCTION(multi_poll),
	FUNCTION(multi_wakeup),
	FUNCTION(multi_info_read),
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

const char *certificates_system(void)
{
	/* Of Debian, RHEL, SUSE and Alpine. */
	static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
	const char *file = getenv("SSL_CERT_FILE");

	if (file && file[0])
		return file;
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

const char *certificates_directory(void)
{
	static const char path[] = "/etc/ssl/certs"; /* of Debian and SUSE */
	const char *file = getenv("SSL_CERT_FILE");

	return !(file && file[0]) && has_hashes(path) ? path : NULL;
}

bool certificates_append(struct certificates *to, const char *path)
{
	FILE *file = fopen(path, "re");
	struct stat st;

	if (!file)
		return false;
	if (fstat(fileno(file), &st) != 0 || st.st_size > CERTIFICATES_BYTES) {
		fclose(file);
		errno = EFBIG;
		return false;
	}
	char *blob = realloc(to->text, to->n + (size_t)st.st_size + 1);

	if (blob) {
		to->text = blob;
		to->n += fread(blob + to->n, 1, (size_t)st.st_size, file);
		blob[to->n++] = '\n';
	}
	fclose(file);
	return blob;
}
