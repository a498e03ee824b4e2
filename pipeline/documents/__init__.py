"""Documents: extraction of a unit, page policy, the funnel of counts, selection and removals."""
