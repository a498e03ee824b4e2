"""Documents: extraction of a unit, skip rules, counts, selection and removals."""
