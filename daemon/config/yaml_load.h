/* Reads a file as one YAML document. */
#ifndef TOKEND_YAML_LOAD_H
#define TOKEND_YAML_LOAD_H

#include "daemon/config/schema.h"

#include <stdio.h>

/*
 * Loads @file into *s->document, which the caller deletes with yaml_document_delete(). False and
 * s->fault: the file cannot be read, is larger than 16 MiB, is not valid YAML, is nested
 * deeper than 32 levels, or contains a second document. The document is then already deleted.
 * The caller frees *@text, the file's bytes, after a failure too.
 */
bool yaml_load(struct schema *s, FILE *file, char **text, size_t *text_bytes);

#endif
