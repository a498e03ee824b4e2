"""Documents: extraction of a unit, page policy, counts, selection and removals."""
