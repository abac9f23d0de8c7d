/*
 * Writes a man page in the macros of man(7). Texts are UTF-8; words between backticks become bold,
 * and an empty line begins a new paragraph.
 */
#ifndef TOKEND_CTL_ROFF_H
#define TOKEND_CTL_ROFF_H

#include <stdio.h>

/* @name: "tokctl". @summary: a phrase. */
void roff_begin(FILE *to, const char *name, int section, const char *summary);
void roff_section(FILE *to, const char *title);
void roff_subsection(FILE *to, const char *title);
/* Paragraphs. */
void roff_text(FILE *to, const char *text);
/* A term of a list: @name in bold, then @value (or NULL) in italics. Its description follows. */
void roff_term(FILE *to, const char *name, const char *value);
/* Sentences of a description. */
void roff_sentences(FILE *to, const char *text);
/* A phrase as a sentence: "Phrase (details)" and @end, "." or ":". @details may be "". */
void roff_phrase(FILE *to, const char *phrase, const char *details, const char *end);
/* A usage line. It is not broken within brackets. */
void roff_synopsis(FILE *to, const char *text);
/* Lines in a fixed layout. */
void roff_example(FILE *to, const char *lines);

#endif
