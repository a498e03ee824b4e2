"""What the command lines of both jobs share: config files, arguments, paths."""
