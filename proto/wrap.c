#include "proto/wrap.h"

size_t wrap_line(const char *text, size_t columns)
{
	size_t column = 0, at = 0, end = 0;
	int depth = 0;

	for (;; at++) {
		depth += (text[at] == '[') - (text[at] == ']');
		if (!text[at] || (text[at] == ' ' && depth == 0)) {
			if (end > 0 && column > columns)
				return end;
			end = at;
		}
		if (!text[at])
			return end;
		column += ((unsigned char)text[at] & 0xc0) != 0x80;
	}
}
