#include "daemon/control/control.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct stat_fields {
	uint64_t threads, start, virtual_bytes, pages;
};

static bool read_stat(const struct process *p, struct stat_fields *f)
{
	char text[1024], *end;
	ssize_t n = p->stat < 0 ? -1 : pread(p->stat, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return false;
	text[n] = 0;
	end = strrchr(text, ')'); /* of the program's name, which may contain anything */
	return end && sscanf(end + 1,
			      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d"
			      " %*d %" SCNu64 " %*d %" SCNu64 " %" SCNu64 " %" SCNu64,
			      &f->threads, &f->start, &f->virtual_bytes, &f->pages) == 4;
}

static double seconds(struct timespec t)
{
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void process_open(struct process *p)
{
	struct timespec now, up;
	struct stat_fields f;

	p->stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	p->fds = opendir("/proc/self/fd");
	clock_gettime(CLOCK_REALTIME, &now);
	clock_gettime(CLOCK_BOOTTIME, &up);
	p->start_s = seconds(now);
	if (read_stat(p, &f))
		p->start_s -= seconds(up) - (double)f.start / (double)sysconf(_SC_CLK_TCK);
}

void process_close(struct process *p)
{
	if (p->stat >= 0)
		close(p->stat);
	if (p->fds)
		closedir(p->fds);
}

bool process_read(const struct process *p, struct process_figures *figures)
{
	struct rlimit limit = {0};
	struct stat_fields f;

	if (!p->fds || !read_stat(p, &f))
		return false;
	getrlimit(RLIMIT_NOFILE, &limit);
	*figures = (struct process_figures){
		.resident_bytes = f.pages * (uint64_t)sysconf(_SC_PAGESIZE),
		.virtual_bytes = f.virtual_bytes,
		.threads = f.threads,
		.descriptors_most = limit.rlim_cur,
	};
	rewinddir(p->fds);
	for (const struct dirent *entry; (entry = readdir(p->fds));)
		figures->descriptors += entry->d_name[0] != '.';
	return true;
}
