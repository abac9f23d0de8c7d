# Makes debian/changelog from daemon/CHANGES.md: each "## VERSION (DATE)" with its list is an entry.

function finish() {
	if (version) {
		command = "date -R -u -d " date
		command | getline stamp
		close(command)
		printf "\n -- %s  %s\n\n", maintainer, stamp
	}
	version = ""
}

/^## / {
	finish()
	if ($3 ~ /^\([0-9-]+\)$/) {
		version = $2
		date = substr($3, 2, length($3) - 2)
		printf "tokend (%s) unstable; urgency=medium\n\n", version
	}
	next
}
version && /^- / { print "  * " substr($0, 3) }
version && /^  / { print "  " $0 }

END { finish() }
