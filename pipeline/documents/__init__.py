"""Documents: extraction of a unit, skip rules, counts, split, selection and removals."""
