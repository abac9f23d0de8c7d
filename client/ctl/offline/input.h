/*
 * Shards named on the command line, in any format.
 */
#ifndef TOKEND_CTL_INPUT_H
#define TOKEND_CTL_INPUT_H

#include "client/ctl/common/arguments.h"
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "proto/fault.h"

/* What --input-format, --input-dtype and --input-column say. */
struct ctl_input {
	const struct shard_format *format; /* NULL: whatever recognises the file */
	struct shard_hint hint;
	const char *name; /* with the hint's label_mask: the shard's name in the dataset, with which
			     its path ends; otherwise NULL */
};

#define CTL_INPUT_FORMAT_OPTION                                                                    \
	{                                                                                          \
		.name = "input-format", .value = "F",                                              \
		.help = "the shards' format; default: auto, whatever recognises them"              \
	}
#define CTL_INPUT_DTYPE_OPTION                                                                     \
	{                                                                                          \
		.name = "input-dtype", .value = "T",                                               \
		.help = "u8, i8, u16, i16, u32, i32, u64 or i64, where the file does not say"      \
	}
#define CTL_INPUT_COLUMN_OPTION                                                                    \
	{                                                                                          \
		.name = "input-column", .value = "C", .help = "the column that holds the tokens"   \
	}

/* From the options' values, each of which may be NULL. False after a usage error of @command. */
bool ctl_input_options(struct ctl_input *input, const struct ctl_command *command,
	const char *format, const char *dtype, const char *column);

/*
 * Removes from @n paths the side files (an index, a mask, …) of shards that are among the others or
 * below them: DIRECTORY/[*] names them all. Returns how many are left; -1: out of memory.
 */
int ctl_input_paths(char **path, int n);
/*
 * The shards that @path, a file, a directory or a pattern, stands for. Their names go on after its
 * first *@prefix bytes. The fault does not name the path where it is the path that is not there.
 */
bool ctl_input_list(struct shard_list *list, const char *path, size_t *prefix, struct fault *fault);
/* @path without links; of a pattern, the directory below which it matches. NULL: there is none. */
char *ctl_input_real(const char *path);
/* Shard @i of the list of @path by the name that the user knows: @path itself, or a path below
 * it. */
void ctl_input_name(const struct shard_list *list, uint64_t i, const char *path, size_t prefix,
	char *name, size_t name_bytes);

/*
 * Describes and opens. *@fd is the caller's to close, after the shard; -1 where there is none.
 * The fault does not name the path.
 */
struct shard *ctl_input_open(
	const struct ctl_input *input, const char *path, int *fd, struct fault *fault);

#endif
