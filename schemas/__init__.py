"""What pipeline and trainer agree on to the bit: columns, manifests, errors, keyed randomness, masking."""
