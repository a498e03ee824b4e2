"""How stages run on Ray Data: maps, shuffles, commits, progress, and the identity of a build."""
