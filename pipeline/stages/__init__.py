"""The stages of a build: the modules that use Ray Data, one for each stage."""
