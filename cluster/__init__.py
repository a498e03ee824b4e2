"""The infrastructure of both jobs: storage by URI, config files, Ray."""
