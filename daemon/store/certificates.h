/* The certificates that servers' certificates are verified with. */
#ifndef TOKEND_STORE_CERTIFICATES_H
#define TOKEND_STORE_CERTIFICATES_H

#include <stdbool.h>
#include <stddef.h>

/* PEM, of several files. Initialise with zeros; free `text`. */
struct certificates {
	char *text; /* NULL: none */
	size_t n;
};

/* SSL_CERT_FILE, or the system's file. NULL: not found. */
const char *certificates_system(void);
/* The system's directory in which OpenSSL finds single certificates. NULL: none, or SSL_CERT_FILE
 * is to be used. */
const char *certificates_directory(void);
/* False: the file cannot be read, and errno says why. */
bool certificates_append(struct certificates *to, const char *path);

#endif
