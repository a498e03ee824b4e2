"""MediaWiki XML dumps: headers, indexes, pages, and the units of work that a dump is split into."""
