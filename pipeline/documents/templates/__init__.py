"""The templates of a wiki: pages, uses in a unit, and the table that cleaning looks up."""
