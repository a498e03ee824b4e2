"""What people read about a build: tables, dataset card, HTML report."""
