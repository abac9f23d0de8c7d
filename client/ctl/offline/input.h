/*
 * Shards named on the command line, in any format.
 */
#ifndef TOKEND_CTL_INPUT_H
#define TOKEND_CTL_INPUT_H

#include "client/ctl/common/arguments.h"
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "proto/fault.h"

/* The options --input-format, --input-dtype and --input-column. */
struct ctl_input {
	const struct shard_format *format; /* NULL: the format that recognises the file */
	struct shard_hint hint;
	const char *name; /* the shard's name in its dataset, a suffix of its path, if the hint has
			     a label_mask; otherwise NULL */
};

#define CTL_INPUT_FORMAT_OPTION                                                                    \
	{                                                                                          \
		.name = "input-format", .value = "FORMAT",                                         \
		.help = "format of the shards: npy, llmc, datatrove, flat, megatron, mds or "      \
			"arrow; default: auto, recognise each"                                     \
	}
#define CTL_INPUT_DTYPE_OPTION                                                                     \
	{                                                                                          \
		.name = "input-dtype", .value = "DTYPE",                                           \
		.help = "type of a token, for files that do not say: u8, i8, u16, i16, u32, i32, " \
			"u64 or i64; default: u16"                                                 \
	}
#define CTL_INPUT_COLUMN_OPTION                                                                    \
	{                                                                                          \
		.name = "input-column", .value = "NAME",                                           \
		.help = "column of the tokens in mds and arrow shards; default: tokens, then "     \
			"input_ids, then the only one that fits"                                   \
	}

/* Sets *@input from the values of the options (NULL: not given). False: a usage error of @command
 * was printed. @column is borrowed. */
bool ctl_input_options(struct ctl_input *input, const struct ctl_command *command,
	const char *format, const char *dtype, const char *column);

/*
 * Removes from the @n paths side files (an index, a mask, …) of shards that are also named or are
 * in a directory that is: a shell expands DIRECTORY/[*] to all of them. Returns the number of paths
 * left; -1: out of memory.
 */
int ctl_input_paths(char **path, int n);
/*
 * Lists the shards of @path: a file, a directory or a pattern. Their names continue the first
 * *@prefix bytes of @path. False: *@list is empty; the fault names only files below @path.
 */
bool ctl_input_list(struct shard_list *list, const char *path, size_t *prefix, struct fault *fault);
/* @path with links resolved; for a pattern, the directory below which it matches. The caller frees
 * it. NULL: it does not exist. */
char *ctl_input_real(const char *path);
/* Sets @name to the name of shard @i of the list of @path as the user would write it: @path, or a
 * path below it. */
void ctl_input_name(const struct shard_list *list, uint64_t i, const char *path, size_t prefix,
	char *name, size_t name_bytes);

/*
 * Recognises and opens a shard. The caller closes *@fd after the shard, unless it is -1. NULL: the
 * fault does not name the path.
 */
struct shard *ctl_input_open(
	const struct ctl_input *input, const char *path, int *fd, struct fault *fault);
/* Puts @path before the fault's text, unless it begins with it, as a store's faults do. Always
 * false. */
bool ctl_input_fault(const char *path, struct fault *fault);
/* @text without @path, if it begins with it. */
const char *ctl_input_text(const char *path, const char *text);

#endif
