#include "daemon/store/certificates.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CERTIFICATES_BYTES = 16 * 1024 * 1024 };

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
