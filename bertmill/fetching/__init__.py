"""Downloads of Wikimedia's dumps: which files there are, how to fetch them, when a folder is complete."""
