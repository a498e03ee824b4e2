"""What a person reads about a build: tables, dataset card, HTML report."""
