/* The page's files are part of the program: it serves without a directory of its own. */
#include "daemon/control/page.h"

/* Defines @name and @name_end around the bytes of @path, which begins at the top of the sources. */
#define EMBED(name, path)                                                                          \
	__asm__(".section .rodata\n" #name ":\n.incbin \"" path "\"\n" #name                       \
		"_end:\n.byte 0\n.previous\n");                                                    \
	extern const char name[] __attribute__((visibility("hidden"))),                            \
		name##_end[] __attribute__((visibility("hidden")))

EMBED(page_html_text, "daemon/control/page.html");
EMBED(page_css_text, "daemon/control/page.css");
EMBED(page_js_text, "daemon/control/page.js");

static unsigned send(FILE *to, const char *from, const char *end)
{
	fwrite(from, 1, (size_t)(end - from), to);
	return 200;
}

unsigned page_html(void *context, FILE *to)
{
	(void)context;
	return send(to, page_html_text, page_html_text_end);
}

unsigned page_css(void *context, FILE *to)
{
	(void)context;
	return send(to, page_css_text, page_css_text_end);
}

unsigned page_js(void *context, FILE *to)
{
	(void)context;
	return send(to, page_js_text, page_js_text_end);
}
