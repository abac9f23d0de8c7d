# Makes debian/changelog from daemon/CHANGES.md: each "## VERSION (DATE)" with its list is an entry.

function put_item(    i, n, line, word) {
	n = split(item, word, " ")
	line = "  *"
	for (i = 1; i <= n; i++) {
		if (length(line) + 1 + length(word[i]) > 79) {
			print line
			line = "   "
		}
		line = line " " word[i]
	}
	if (n)
		print line
	item = ""
}

function put_end(    command, stamp) {
	put_item()
	if (version) {
		command = "date -R -u -d " date
		command | getline stamp
		close(command)
		printf "\n -- %s  %s\n\n", maintainer, stamp
	}
	version = ""
}

/^## / {
	put_end()
	if ($3 ~ /^\([0-9-]+\)$/) {
		version = $2
		date = substr($3, 2, length($3) - 2)
		printf "tokend (%s) unstable; urgency=medium\n\n", version
	}
	next
}
version && /^- / {
	put_item()
	item = substr($0, 3)
}
version && /^  / { item = item $0 }

END { put_end() }
