"""What both jobs need of the machines under them: storage by URI, config files, Ray."""
