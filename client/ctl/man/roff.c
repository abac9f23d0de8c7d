#include "client/ctl/man/roff.h"

#include "proto/text.h"
#include "proto/version.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* The code point of the UTF-8 character of @n bytes at @p, 2 or more. */
static unsigned code_point(const char *p, unsigned n)
{
	unsigned code = (unsigned char)p[0] & (0xff >> (n + 1));

	for (unsigned i = 1; i < n; i++)
		code = code << 6 | ((unsigned char)p[i] & 0x3f);
	return code;
}

/* Writes the character at @p and returns its bytes. @literal: users type it, so '-' is a minus. */
static unsigned put_character(FILE *to, const char *p, bool literal)
{
	static const char special[] = "\\~^'`";
	static const char *const names[] = {"\\(rs", "\\(ti", "\\(ha", "\\(aq", "\\(ga"};
	const char *found = strchr(special, *p);
	unsigned n = text_character(p);

	if (strncmp(p, "…", sizeof("…") - 1) == 0)
		fputs("...", to); /* ASCII terminals have no other */
	else if (found)
		fputs(names[found - special], to);
	else if (*p == '-' && literal)
		fputs("\\-", to);
	else if (n > 1)
		fprintf(to, "\\[u%04X]", code_point(p, n));
	else
		fputc(*p, to);
	return n > 1 ? n : 1;
}

/* The characters of a line. A line must not begin with the control characters . and '. */
static void put_literal(FILE *to, const char *text)
{
	if (*text == '.' || *text == '\'')
		fputs("\\&", to);
	while (*text && *text != '\n')
		text += put_character(to, text, true);
}

/* One paragraph. Returns the end of its text. */
static const char *put_paragraph(FILE *to, const char *text)
{
	const char *p = text;
	bool bold = false;

	if (*p == '.' || *p == '\'')
		fputs("\\&", to);
	while (*p && strncmp(p, "\n\n", 2) != 0) {
		/* "-c" and "--to", but not "start-up" */
		bool option = p > text && !isalnum((unsigned char)p[-1]);

		if (*p == '`') {
			bold = !bold;
			fputs(bold ? "\\fB" : "\\fR", to);
			p++;
		} else {
			p += put_character(to, p, bold || option);
		}
	}
	fputc('\n', to);
	return p;
}

void roff_begin(FILE *to, const char *name, int section, const char *summary)
{
	fputs(".nr HY 0\n.TH ", to); /* no hyphenation */
	for (const char *p = name; *p; p++)
		fputc(toupper((unsigned char)*p), to);
	fprintf(to,
		" %d \"\" \"tokend " TOKEND_VERSION "\"\n.ad l\n.ss 12 0\n.SH NAME\n%s \\- %s\n",
		section, name, summary);
}

void roff_section(FILE *to, const char *title)
{
	fprintf(to, ".SH %s\n", title);
}

void roff_subsection(FILE *to, const char *title)
{
	fprintf(to, ".SS %s\n", title);
}

void roff_text(FILE *to, const char *text)
{
	while (*text) {
		fputs(".PP\n", to);
		text = put_paragraph(to, text);
		text += strspn(text, "\n");
	}
}

void roff_phrase(FILE *to, const char *phrase, const char *details, const char *end)
{
	char text[1024];

	snprintf(text, sizeof(text), "%s%s%s%s%s", phrase, details[0] ? " (" : "", details,
		details[0] ? ")" : "", end);
	text[0] = (char)toupper((unsigned char)text[0]);
	put_paragraph(to, text);
}

void roff_synopsis(FILE *to, const char *text)
{
	int depth = 0;

	fputs(".HP\n", to);
	for (const char *p = text; *p;) {
		depth += (*p == '[') - (*p == ']');
		if (*p != ' ' || depth == 0) {
			p += put_character(to, p, true);
			continue;
		}
		fputs("\\ ", to); /* no line break */
		p++;
	}
	fputc('\n', to);
}

void roff_term(FILE *to, const char *name, const char *value)
{
	fputs(".TP\n\\fB", to);
	put_literal(to, name);
	fputs("\\fR", to);
	if (value) {
		fputs(" \\fI", to);
		put_literal(to, value);
		fputs("\\fR", to);
	}
	fputc('\n', to);
}

void roff_sentences(FILE *to, const char *text)
{
	put_paragraph(to, text);
}

void roff_example(FILE *to, const char *lines)
{
	fputs(".PP\n.RS 4\n.EX\n", to);
	while (*lines) {
		put_literal(to, lines);
		fputc('\n', to);
		lines += strcspn(lines, "\n");
		lines += *lines == '\n';
	}
	fputs(".EE\n.RE\n", to);
}
