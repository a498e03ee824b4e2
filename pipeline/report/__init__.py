"""The reports of a build: tables, dataset cards, HTML page."""
