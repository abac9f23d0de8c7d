#include "client/ctl/online/store_lines.h"

#include "proto/fault.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct line {
	size_t n;
	char text[STORE_LINE_BYTES];
};

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *format, ...)
{
	va_list values;
	int n;

	va_start(values, format);
	n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, format, values);
	va_end(values);
	if (n > 0)
		l->n += (size_t)n;
	if (l->n >= sizeof(l->text))
		l->n = sizeof(l->text) - 1;
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static const char *text(const json_t *object, const char *name)
{
	const char *value = json_string_value(json_object_get(object, name));

	return value ? value : "";
}

static bool is_null(const json_t *object, const char *name)
{
	return !json_is_number(json_object_get(object, name));
}

/* With one digit after the point if it is small. */
static void add_number(struct line *l, double value, const char *unit)
{
	add(l, "%.*f%s", value > 0 && value < 10, value, unit);
}

static void add_duration(struct line *l, double s)
{
	if (s < 120)
		add(l, "%.0f s", s);
	else if (s < 7200)
		add(l, "%.0f min", s / 60);
	else if (s < 172800)
		add(l, "%.0f h", s / 3600);
	else
		add(l, "%.0f days", s / 86400);
}

static void add_last(struct line *l, const json_t *object)
{
	if (is_null(object, "last_ago_s"))
		return;
	add(l, "  last: %s, ", text(object, "last"));
	add_duration(l, number(object, "last_ago_s"));
	add(l, " ago");
}

static void add_store(struct line *l, const json_t *store)
{
	add(l, "%s  ", text(store, "store"));
	add_number(l, number(store, "get_per_s"), " GET/s ");
	add_number(l, number(store, "bytes_per_s") / 1e6, " MB/s");
	add(l, "  %.0f of %.0f in flight", number(store, "in_flight"), number(store, "limit"));
	if (!is_null(store, "p50_ms"))
		add(l, "  p50 %.0f p99 %.0f ms", number(store, "p50_ms"), number(store, "p99_ms"));
	add(l, "  retried %.1f %%", 100 * number(store, "retried"));
	if (text(store, "provider")[0])
		add(l, "  credentials: %s", text(store, "provider"));
	if (text(store, "provider")[0] && !is_null(store, "credentials_s")) {
		add(l, ", ");
		add_duration(l, number(store, "credentials_s"));
		add(l, " left");
	}
	add_last(l, store);
}

static void add_cache(struct line *l, const json_t *cache)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double size = number(cache, "size_bytes"), used = number(cache, "used_bytes");
	double hits = number(cache, "hits"), pieces = hits + number(cache, "misses");
	unsigned i = 0;

	for (; size >= 1024 && i < 4; i++) {
		size /= 1024;
		used /= 1024;
	}
	add(l, "cache %s  ", text(cache, "dir"));
	add_number(l, used, " of ");
	add(l, "%g %s, hit %.2f, evicted %.0f, mismatches %.0f", size, unit[i],
		pieces > 0 ? hits / pieces : 0, number(cache, "evictions"),
		number(cache, "mismatches"));
	if (number(cache, "failing_s") > 0)
		add(l, "  not written: tried again in %.0f s", number(cache, "failing_s"));
	add_last(l, cache);
}

void store_lines(const json_t *status, void (*each)(void *context, const char *line), void *context)
{
	json_t *store, *cache = json_object_get(status, "cache");
	size_t i;

	json_array_foreach(json_object_get(status, "stores"), i, store)
	{
		struct line line = {0};

		add_store(&line, store);
		each(context, fault_line(line.text));
	}
	if (json_is_object(cache)) {
		struct line line = {0};

		add_cache(&line, cache);
		each(context, fault_line(line.text));
	}
}
