"""Servers, clusters, references and small data that tests of several packages share."""
